"""A module is read strictly, and filled for an assignment: parameters, ports, names of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.control.composing import check_module
from agent.control.modules import Filling, ModulePort, encode_module, fill_module, foreign, read_module, references
from agent.errors import Refused
from agent.fields import Fields

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

README = Path(__file__).parents[3] / "README.md"

SERVICE = {"kind": "service", "name": "server", "command": ["/bin/web", "${port.http}"], "ports": ["${port.http}"]}
WEB = {"name": "web", "params": {"greeting": "hello"}, "ports": {"http": "80/tcp", "dns": "udp"}, "resource": [SERVICE]}


def module(*items, **fields):
    return read_module(Fields({**WEB, **({"resource": list(items)} if items else {}), **fields}))


def fill(one, *, settings=None, elsewhere=None, called="shop", ports=None):
    filling = Filling(called, settings or {}, "a", elsewhere or {})
    return fill_module(one, filling, {"http": 20001, "dns": 20002} if ports is None else ports)


def test_a_module_is_read_and_written():
    read = module()
    assert (read.name, dict(read.document.params)) == ("web", {"greeting": "hello"})
    assert read.ports == {"http": ModulePort("tcp", 80), "dns": ModulePort("udp", None)}
    assert read_module(Fields(encode_module(read))) == read


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": "Web"}, 'name: "Web" is no DNS label'),
        ({"ports": {"HTTP": "80/tcp"}}, 'ports: "HTTP" is no DNS label'),
        ({"ports": {"http": "80"}}, r'ports\.http: "80" is no open port'),
        ({"ports": {"http": "8080:80/tcp"}}, "no open port"),
        ({"ports": {"http": "0/tcp"}}, "no open port"),
        ({"ports": {"http": "80/sctp"}}, "no open port"),
        ({"ports": {"http": 80}}, r"ports\.http: is a number"),
        ({"prots": {}}, r'prots.*did you mean "ports"'),
        ({"resource": []}, "has no resources"),
        ({"mesh": {}}, "mesh: there is no such field"),
    ],
)
def test_what_is_no_module_is_refused(fields, why):
    with pytest.raises(Refused, match=why):
        module(**fields)


def test_parameters_ports_and_the_nodes_name_are_filled():
    content = "${param.greeting} from ${node.name} as ${assignment.name} at ${port.http} $${x}"
    one = module({"kind": "file", "name": "/srv/${assignment.name}", "template": True, "content": content})
    (item,) = fill(one, settings={"greeting": "${secret.x}"})
    assert item["name"] == "/srv/shop"
    # What was filled in is data, which nobody fills again.
    assert item["content"] == "$${secret.x} from a as shop at 20001 $${x}"


def test_a_file_that_is_no_template_stays_as_it_is():
    (item,) = fill(module({"kind": "file", "name": "/srv/x", "content": "${port.http} ${nonsense"}))
    assert item["content"] == "${port.http} ${nonsense"


def test_names_of_the_nodes_own_become_the_assignments_and_references_follow():
    one = module(
        {"kind": "secret", "name": "password"},
        {"kind": "certificate", "name": "tls"},
        {"kind": "reserved", "name": "also", "ports": ["${port.dns}/udp"]},
        {
            **SERVICE,
            "needs": ["secret:password", "package:jq"],
            "environment": {"A": "${secret.password} ${fingerprint.tls} ${secret.elsewhere}"},
        },
        {"kind": "container", "name": "box", "image": "x", "needs": ["service:server"]},
        {"kind": "file", "name": "/etc/server", "content": ""},
    )
    items = fill(one)
    assert [f"{item['kind']}:{item['name']}" for item in items] == [
        "secret:shop-password",
        "certificate:shop-tls",
        "reserved:shop-also",
        "service:shop-server",
        "container:shop-box",
        "file:/etc/server",
    ]
    assert items[3]["needs"] == ["secret:shop-password", "package:jq"]
    assert items[3]["environment"] == {"A": "${secret.shop-password} ${fingerprint.shop-tls} ${secret.elsewhere}"}
    assert items[4]["needs"] == ["service:shop-server"]


def test_open_ports_stay_open_where_no_number_is_known():
    assert fill(module(), ports={})[0]["ports"] == ["${port.http}"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("${port.htttp}", r'resource\[0\]\.ports\[0\]: the module web has no port "htttp"; did you mean "http"'),
        ("${param.greting}", r'\$\{param\.greting\}.*did you mean "param\.greeting"'),
        ("${port.a.b}", "has no port"),
    ],
)
def test_a_reference_that_nothing_fills_is_refused_with_its_place(text, why):
    with pytest.raises(Refused, match=why):
        fill(module({**SERVICE, "ports": [text]}))


def test_a_setting_that_is_no_parameter_is_refused():
    with pytest.raises(Refused, match=r'"greting".*did you mean "greeting"'):
        fill(module(), settings={"greting": "x"})


def test_what_others_have_is_filled_by_its_name():
    one = module({**SERVICE, "environment": {"DB": "${address.b}:${port.b.db.sql}"}})
    names = references(one.document.items)
    assert foreign(names) == {"address.b", "port.b.db.sql"}
    assert names["port.b.db.sql"] == "resource[0].environment.DB"
    values = {"address.b": "10.0.0.2", "port.b.db.sql": "20005"}
    assert fill(one, elsewhere=values)[0]["environment"] == {"DB": "10.0.0.2:20005"}


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([{**SERVICE, "comand": []}], r'resource\[0\]\.comand.*did you mean "command"'),
        ([SERVICE, SERVICE], "declared twice"),
        ([{**SERVICE, "ports": ["${port.http}/udp"]}], "takes the module's port http as udp, but it is tcp"),
        ([{**SERVICE, "name": "${param.greeting}!"}], "no DNS label"),
        (
            [{"kind": "container", "name": "c", "image": "x", "ports": ["${port.http}:8080"]}],
            "publishes its port 8080 as the module's port http, which is 80/tcp",
        ),
        ([{**SERVICE, "command": ["/bin/web", "${secret.x}"]}], "every user of the machine could read"),
        ([{"kind": "secret", "name": "x", "sealed": "AAAA"}], "only the mesh seals a secret"),
    ],
)
def test_a_module_that_no_node_could_be_given_is_refused(items, why):
    with pytest.raises(Refused, match=why):
        check_module(module(*items))


def test_a_module_may_refer_to_nodes_that_nobody_knows_yet():
    check_module(module({**SERVICE, "environment": {"DB": "${address.b}:${port.b.db.sql}"}}))


def test_a_module_may_use_a_secret_that_the_mesh_does_not_have_yet():
    check_module(module({**SERVICE, "environment": {"A": "${secret.x}"}}))


def test_the_readmes_module_is_one():
    text = README.read_text()
    lines = text[text.index("    # shop.toml") : text.index("    agent control module add")].splitlines()
    one = read_module(Fields(tomllib.loads("\n".join(lines))))
    check_module(one)
    assert one.ports == {"http": ModulePort("tcp", 80)}
