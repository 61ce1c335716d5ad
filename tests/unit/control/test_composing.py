"""A node's list is its own, then its assignments; what can't stand side by side is refused by its name."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from agent.control.assigning import Arrangement, Assignment, OwnList, Released, assign, may_be_open, unassign
from agent.control.composing import Elsewhere, Target, compose, named_secrets, used_references
from agent.control.modules import read_module
from agent.control.parts import Secrets
from agent.control.ports import HostPort, PortRange
from agent.control.registry import Node
from agent.errors import Refused
from agent.fields import Fields
from agent.resources import Document

NODE = Node("a", b"k" * 32, 0.0, wanted=4, reported=4, reported_at=1.0, carried=(20000, 22))
RANGE = PortRange(20000, 20009)
SERVICE = {"kind": "service", "name": "server", "command": ["/bin/web"], "ports": ["${port.http}"]}
FILE = {"kind": "file", "name": "/etc/a", "content": "x"}


def module(*items, name="web", ports=None, **params):
    ports = {"http": "tcp"} if ports is None else ports
    return read_module(Fields({"name": name, "params": params, "ports": ports, "resource": list(items) or [SERVICE]}))


MODULES = {("web", 1): module()}


def put(after, *, before=None, node=NODE, modules=MODULES, elsewhere=None, declared=(), **how):
    before = Arrangement() if before is None else before
    target = Target(
        node,
        max(node.wanted, node.reported or 0) + 1,
        declared,
        how.get("range", RANGE),
        modules,
        how.get("secrets", Secrets()),
    )
    elsewhere = replace(elsewhere or Elsewhere({"a": "10.0.0.1"}), used=used_references(after, modules))
    return compose(before, after, target, elsewhere)


def own(*items, settings=None, **params):
    return OwnList(Document(params, items), settings or {})


def web(name="web", **fields):
    return Assignment(name, "web", 1, **fields)


def test_the_own_list_comes_first_then_the_assignments_in_their_order():
    composed = put(Arrangement(own(FILE), (web("two"), web("one"))))
    assert composed.checked.ids == ("file:/etc/a", "service:two-server", "service:one-server")
    # 20000 is carried.
    assert [item.get("ports") for item in composed.checked.items] == [None, ["20001"], ["20002"]]
    assert composed.arrangement.assignments[0].ports == {"http": HostPort("tcp", 20001)}
    assert composed.arrangement.assignments[0].holders == ("service:two-server",)
    assert not composed.waits


def test_composing_again_changes_nothing():
    first = put(Arrangement(own(FILE), (web("two"), web("one")))).arrangement
    assert put(first, before=first).arrangement == first
    without = unassign(first, "a", "two")
    second = put(without, before=first).arrangement
    assert second.assignments == first.assignments[1:]


def test_a_list_is_filled_with_parameters_and_the_nodes_name():
    item = {"kind": "file", "name": "/etc/${param.app}/${node.name}", "content": "${param.app}"}
    (filled,) = put(Arrangement(own(item, app="web", settings={"app": "db"}))).checked.items
    assert filled["name"] == "/etc/db/a"
    assert filled["content"] == "${param.app}"  # a file's content takes part only if it says so


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([{"kind": "fil", "name": "/x"}], r'^resource\[0\]\.kind.*did you mean "file"'),
        ([FILE, {**FILE, "name": "etc"}], r"^resource\[1\]\.name"),
        ([{**FILE, "contnt": "x"}], r'^resource\[0\]\.contnt.*did you mean "content"'),
        ([{**FILE, "role": "founder"}], r"^resource\[0\]\.role"),
        ([{"kind": "file", "name": "/x", "blob": "b"}], r"^resource\[0\]\.blob"),
        ([FILE, FILE], "twice"),
        ([{"kind": "reserved", "name": "x", "ports": ["80", "0.0.0.0:80"]}], r"^resource\[0\]\.ports"),
        ([{"kind": "reserved", "name": x, "ports": ["80"]} for x in "ab"], "reserved:b wants port"),
        ([{**FILE, "name": "${state}/ledger.db"}], "the agent's own folder"),
        ([{**FILE, "name": "${param.nowhere}"}], "param.nowhere"),
        (["file"], r"resource\[0\] is a string"),
        ([{**FILE, "content": "${secret.db}", "template": True}], r"secret\.db"),
    ],
)
def test_a_list_that_does_not_validate_is_refused_with_the_place(items, why):
    with pytest.raises(Refused, match=why):
        put(Arrangement(own(*items)))


def test_the_place_in_a_module_names_the_assignment():
    modules = {("web", 1): module({**SERVICE, "user": "${param.user}"}, user="root")}
    with pytest.raises(Refused, match=r'^web: resource\[0\]\.user: "no one" is no user'):
        put(Arrangement(None, (web(settings={"user": "no one"}),)), modules=modules)


def test_a_setting_that_is_no_parameter_is_refused():
    with pytest.raises(Refused, match=r'"prot".*did you mean "port"'):
        put(Arrangement(own(FILE, port="80", settings={"prot": "81"})))


def test_a_need_may_be_something_that_the_node_carries():
    put(Arrangement(own({**FILE, "needs": ["package:openssl"]})))


def test_a_module_may_use_a_secret_of_the_nodes_own_list():
    modules = {("web", 1): module({**SERVICE, "environment": {"A": "${secret.db}"}})}
    secret = {"kind": "secret", "name": "db"}
    put(Arrangement(own(secret), (web(),)), modules=modules)
    with pytest.raises(Refused, match=r"web-server uses .*secret\.db"):
        put(Arrangement(None, (web(),)), modules=modules)


def test_what_several_declare_alike_is_declared_once():
    package = {"kind": "package", "name": "jq"}
    modules = {("web", 1): module(package, {**SERVICE, "needs": ["package:jq"]})}
    composed = put(Arrangement(own(package), (web("one"), web("two"))), modules=modules)
    assert composed.checked.ids == ("package:jq", "service:one-server", "service:two-server")


def test_what_several_declare_otherwise_is_refused_by_their_names():
    modules = {("web", 1): module({"kind": "directory", "name": "/srv", "mode": "0700"})}
    with pytest.raises(Refused, match=r"directory:/srv is declared by the assignment web and.*by the node's own list"):
        put(Arrangement(own({"kind": "directory", "name": "/srv"}), (web(),)), modules=modules)
    modules = {("web", 1): module({**FILE, "content": "${assignment.name}"})}
    with pytest.raises(Refused, match=r"file:/etc/a is declared by the assignment two and.*by the assignment one"):
        put(Arrangement(None, (web("one"), web("two"))), modules=modules)


def test_ports_avoid_every_number_that_somebody_chose_there():
    modules = {
        ("web", 1): module(SERVICE, {"kind": "reserved", "name": "x", "ports": ["20001", "20002/udp"]}),
        ("dns", 1): module({**SERVICE, "ports": ["${port.http}/udp"]}, name="dns", ports={"http": "udp"}),
    }
    listed = own({"kind": "reserved", "name": "sshd", "ports": ["127.0.0.1:20003"]})
    composed = put(Arrangement(listed, (web(), Assignment("dns", "dns", 1))), modules=modules)
    ports = [one.ports["http"] for one in composed.arrangement.assignments]
    # UDP on 20002 is the module's own; TCP there is free.
    assert ports == [HostPort("tcp", 20002), HostPort("udp", 20001)]


def test_a_pinned_port_that_is_assigned_is_refused_with_its_holders_name():
    first = put(Arrangement(None, (web("shop"),))).arrangement
    pinned = own({"kind": "reserved", "name": "mine", "ports": ["20001"]})
    why = r"reserved:mine wants port \*:20001/tcp, which the assignment shop holds as its port http"
    with pytest.raises(Refused, match=why):
        put(replace(first, own=pinned), before=first)
    put(replace(first, own=own({"kind": "reserved", "name": "mine", "ports": ["20001/udp"]})), before=first)


def test_two_pinned_ports_are_refused_with_the_holders_name():
    modules = {("web", 1): module({**SERVICE, "ports": ["8080"]}, ports={})}
    with pytest.raises(Refused, match=r"service:two-server wants port .*8080.*, which service:one-server holds"):
        put(Arrangement(None, (web("one"), web("two"))), modules=modules)


def test_none_left_is_said_with_numbers():
    names = tuple(web(f"w{at}") for at in range(10))
    with pytest.raises(Refused, match="a has no tcp port left in 20000-20009: it carries 1 there, and 9 are assigned"):
        put(Arrangement(None, names))


def test_the_nodes_ephemeral_range_is_left_out():
    node = replace(NODE, profile={"ephemeral": [20000, 20005]})
    assert put(Arrangement(None, (web(),)), node=node).arrangement.assignments[0].ports["http"].number == 20006


def test_before_the_first_report_assignments_wait():
    node = replace(NODE, reported=None, reported_at=None, carried=(), wanted=0)
    after = Arrangement(own(FILE), (web(),))
    composed = put(after, node=node)
    assert composed.waits
    assert composed.checked.ids == ("file:/etc/a",)
    assert composed.arrangement == after  # no port is given before it is known what is carried
    with pytest.raises(Refused, match="no parameter"):
        put(Arrangement(None, (web(settings={"x": "y"}),)), node=node)


def test_what_was_declared_once_does_not_wait_when_a_machine_is_replaced():
    first = put(Arrangement(own(FILE), (web("one"),))).arrangement
    node = replace(NODE, reported=None, reported_at=None, carried=())
    composed = put(assign(first, web("two")), before=first, node=node)
    assert composed.checked.ids == ("file:/etc/a", "service:one-server")
    assert composed.waits
    assert composed.arrangement.assignments == (first.assignments[0], web("two"))


def test_ports_that_are_given_back_are_held_until_the_removal_is_reported():
    first = put(Arrangement(None, (web("one"),))).arrangement
    second = put(unassign(first, "a", "one"), before=first).arrangement
    assert second.released == (Released(HostPort("tcp", 20001), "one", 5, ("service:one-server",)),)

    def next_port(**node):
        there = replace(NODE, wanted=5, **node)
        composed = put(assign(second, web("two")), before=second, node=there)
        return composed.arrangement.assignments[0].ports["http"].number, len(composed.arrangement.released)

    assert next_port(reported=4) == (20002, 1)
    assert next_port(reported=5, holdings=("service:one-server",)) == (20002, 1)  # it could not be removed
    assert next_port(reported=5, holdings=("file:/other",)) == (20001, 0)


RELEASED = Released(HostPort("tcp", 20001), "one", 5, ("service:one-server",))


@pytest.mark.parametrize(
    ("node", "declared", "open"),
    [
        # Assigned again under its name: it holds that id anew, with other ports.
        ({"wanted": 6, "reported": 6, "holdings": ("service:one-server",)}, {"service:one-server"}, False),
        ({"wanted": 6, "reported": 5, "holdings": ("service:one-server",)}, {"service:one-server"}, True),
        (
            {"wanted": 6, "reported": 6, "holdings": ("service:one-server",), "failures": {"service:one-server": "no"}},
            {"service:one-server"},
            True,
        ),
        ({"wanted": 6, "reported": 0}, set(), True),
        ({"wanted": 6, "reported": None}, set(), True),
        ({"wanted": 6, "reported": 9}, set(), False),
    ],
)
def test_a_port_is_free_once_nothing_can_have_it_open(node, declared, open):
    assert may_be_open(RELEASED, replace(NODE, **node), declared) is open


def test_a_version_without_a_port_gives_it_back():
    modules = {("web", 1): module(), ("web", 2): module({**SERVICE, "ports": []}, ports={})}
    first = put(Arrangement(None, (web(),)), modules=modules).arrangement
    moved = replace(first, assignments=(replace(first.assignments[0], version=2),))
    second = put(moved, before=first, modules=modules).arrangement
    assert (second.assignments[0].ports, len(second.released)) == ({}, 1)


USER = {**SERVICE, "environment": {"DB": "${address.b}:${port.b.db.http}", "SELF": "${address.a}:${port.a.web.http}"}}


def test_ports_and_addresses_of_others_and_of_oneself_have_values():
    there = Arrangement(None, (Assignment("db", "web", 1, ports={"http": HostPort("tcp", 20007)}),))
    elsewhere = Elsewhere({"a": "10.0.0.1", "b": "10.0.0.2"}, {"b": there})
    composed = put(Arrangement(None, (web(),)), modules={("web", 1): module(USER)}, elsewhere=elsewhere)
    assert composed.checked.items[0]["environment"] == {"DB": "10.0.0.2:20007", "SELF": "10.0.0.1:20001"}
    assert composed.uses == {"b"}
    listed = own({**FILE, "template": True, "content": "${port.b.db.http}"})
    composed = put(Arrangement(listed), elsewhere=elsewhere)
    assert (composed.checked.items[0]["content"], composed.uses) == ("20007", {"b"})


@pytest.mark.parametrize(
    ("elsewhere", "why"),
    [
        (Elsewhere({"a": "x", "bb": "x"}), 'there is no node "b"'),
        (Elsewhere({"a": "x", "b": None}), "b has not said at which address"),
        (Elsewhere({"a": "x", "b": "y"}), 'nothing called "db" is assigned to b'),
        (
            Elsewhere({"a": "x", "b": "y"}, {"b": Arrangement(None, (Assignment("dbs", "web", 1),))}),
            'nothing called "db" is assigned to b; did you mean "dbs"',
        ),
        (
            Elsewhere({"a": "x", "b": "y"}, {"b": Arrangement(None, (Assignment("db", "web", 1),))}),
            "has no value yet: db .*waits for that node's first report",
        ),
        (
            Elsewhere(
                {"a": "x", "b": "y"},
                {"b": Arrangement(None, (Assignment("db", "sql", 1, ports={"htp": HostPort("tcp", 1)}),))},
            ),
            'the module sql of db has no port "http"; did you mean "htp"',
        ),
    ],
)
def test_a_reference_without_a_value_is_refused_with_its_place(elsewhere, why):
    with pytest.raises(Refused, match=why) as refused:
        put(Arrangement(None, (web(),)), modules={("web", 1): module(USER)}, elsewhere=elsewhere)
    assert "resource[0].environment.DB" in str(refused.value)


def test_a_name_is_taken_once_and_a_dns_label():
    with pytest.raises(Refused, match="An assignment web is there already, of the module web"):
        assign(Arrangement(None, (web(),)), web())
    with pytest.raises(Refused, match="no DNS label"):
        assign(Arrangement(), web("Web"))
    with pytest.raises(Refused, match='"wob" is assigned to a; did you mean "web"'):
        unassign(Arrangement(None, (web(),)), "a", "wob")


BOX = bytes(60)
MESHS = Secrets(("db", "other"), {"db": BOX, "other": BOX})
ITEM = {"kind": "secret", "name": "db", "sealed": base64.b64encode(BOX).decode("ascii")}
READS = {**SERVICE, "environment": {"A": "${secret.db}"}}


def test_a_secret_that_no_list_declares_is_the_meshs_and_comes_first_and_once():
    modules = {("web", 1): module(READS)}
    listed = own(FILE, {**FILE, "name": "/etc/b", "template": True, "content": "${secret.db}"})
    composed = put(Arrangement(listed, (web("one"), web("two"))), modules=modules, secrets=MESHS)
    assert composed.checked.ids == (
        "secret:db",
        "file:/etc/a",
        "file:/etc/b",
        "service:one-server",
        "service:two-server",
    )
    assert composed.checked.items[0] == ITEM
    assert composed.checked.items[3]["environment"] == {"A": "${secret.db}"}
    assert composed.secrets == {"db": ("", "one", "two")}


def test_what_an_assignment_declares_itself_is_its_own():
    modules = {("web", 1): module({"kind": "secret", "name": "db"}, READS)}
    composed = put(Arrangement(None, (web(),)), modules=modules, secrets=MESHS)
    assert composed.checked.ids == ("secret:web-db", "service:web-server")
    assert composed.secrets == {}


def test_what_the_own_list_declares_is_its_own_though_the_mesh_has_one():
    listed = own({"kind": "secret", "name": "db"}, {**FILE, "template": True, "content": "${secret.db}"})
    composed = put(Arrangement(listed), secrets=MESHS)
    assert (composed.checked.ids, composed.secrets) == (("secret:db", "file:/etc/a"), {})


@pytest.mark.parametrize(
    ("after", "title"),
    [
        (Arrangement(own({"kind": "secret", "name": "x-db"}), (web("y"),)), "the node's own list"),
        (Arrangement(None, (web("y"), Assignment("x", "mine", 1))), "the assignment x"),
    ],
)
def test_one_that_could_be_the_meshs_or_anothers_is_refused(after, title):
    modules = {
        ("web", 1): module({**SERVICE, "environment": {"A": "${secret.x-db}"}}),
        ("mine", 1): module({"kind": "secret", "name": "db"}, name="mine", ports={}),
    }
    why = rf"service:y-server uses \$\{{secret\.x-db\}}, which the mesh has and {title} declares as well"
    with pytest.raises(Refused, match=why):
        put(after, modules=modules, secrets=Secrets(("x-db",), {"x-db": BOX}))


def test_a_secret_that_is_nobodys_is_refused_with_the_nearest_and_what_to_run():
    modules = {("web", 1): module({**SERVICE, "environment": {"A": "${secret.dbs}"}})}
    why = r'service:web-server uses .*secret\.dbs.*did you mean "db"\?; `agent control secret set dbs`'
    with pytest.raises(Refused, match=why):
        put(Arrangement(None, (web(),)), modules=modules, secrets=Secrets(MESHS.names))


def test_only_the_mesh_seals():
    with pytest.raises(Refused, match=r"^resource\[0\]\.sealed: only the mesh seals"):
        put(Arrangement(own(ITEM)), secrets=MESHS)


def test_what_waits_does_not_bring_its_secrets_and_is_known_to_use_them():
    modules = {("web", 1): module({**READS, "environment": {"A": "${secret.db}", "B": "${secret.other}"}})}
    listed = own({**FILE, "template": True, "content": "${secret.other}"})
    node = replace(NODE, reported=None, reported_at=None, carried=(), wanted=0)
    composed = put(Arrangement(listed, (web(),)), node=node, modules=modules, secrets=MESHS)
    assert composed.checked.ids == ("secret:other", "file:/etc/a")
    assert composed.secrets == {"db": ("web",), "other": ("", "web")}


def test_names_of_secrets_are_found_wherever_they_stand():
    modules = {("web", 1): module(READS)}
    listed = own({**FILE, "template": True, "content": "${secret.a}${fingerprint.b}${address.a}"})
    assert named_secrets(Arrangement(listed, (web(),)), modules) == {"a", "db"}
