from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.fields import Fields
from agent.resources import (
    Context,
    Document,
    File,
    Inline,
    Resource,
    document_values,
    fill_document,
    parse_list,
    read_document,
)
from agent.template import Template

CONTEXT = Context(Path("/state"))
SECRET = {"kind": "secret", "name": "web"}
CERTIFICATE = {"kind": "certificate", "name": "web"}


def directory(name: str, *needs: str, **fields: object) -> dict[str, object]:
    return {"kind": "directory", "name": name, "needs": list(needs), **fields}


def template(content: str, name: str = "/t", **fields: object) -> dict[str, object]:
    return {"kind": "file", "name": name, "content": content, "template": True, **fields}


def read(*items: object, beside: tuple[str, ...] = ()) -> tuple[Resource, ...]:
    return parse_list(items, CONTEXT, beside=beside)


def test_an_empty_list() -> None:
    assert read() == ()


def test_order_is_kept() -> None:
    assert [one.id for one in read(directory("/b"), directory("/a"))] == ["directory:/b", "directory:/a"]


def test_a_need_is_earlier_or_beside() -> None:
    resources = read(directory("/a"), directory("/b", "directory:/a", "package:nginx"), beside=("package:nginx",))
    assert resources[1].needs == ("directory:/a", "package:nginx")


def test_a_need_counts_once() -> None:
    assert read(directory("/a"), directory("/b", "directory:/a", "directory:/a"))[1].needs == ("directory:/a",)


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (
            [directory("/a", "directory:/b"), directory("/b")],
            'directory:/a needs "directory:/b", which is not declared',
        ),
        ([directory("/a", "directory:/a")], 'directory:/a needs "directory:/a", which is not declared before it'),
        ([directory("/a", "")], 'directory:/a needs "", which is not declared before it'),
        ([directory("/a"), directory("/b", "/a")], 'directory:/b needs "/a", which is not declared before it'),
        ([directory("/a"), directory("/b", "Directory:/a")], 'did you mean "directory:/a"'),
        ([directory("/srv"), directory("/b", "directory:/svr")], 'did you mean "directory:/srv"'),
        ([directory("/a", "x:\x1b[31m")], r'needs "x:\\u001b\[31m"'),
    ],
)
def test_a_need_that_is_not_there_is_refused(items: list[object], why: str) -> None:
    with pytest.raises(Refused, match=why):
        read(*items)


def test_a_secret_that_is_used_is_a_need() -> None:
    resources = read(SECRET, CERTIFICATE, template("${secret.web} ${fingerprint.web} ${secret.web}"))
    assert set(resources[2].needs) == {"secret:web", "certificate:web"}
    assert len(resources[2].needs) == 2


def test_a_need_that_is_also_used_counts_once() -> None:
    assert read(SECRET, template("${secret.web}", needs=["secret:web"]))[1].needs == ("secret:web",)


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (
            [template("${secret.web}"), SECRET],
            r"file:/t uses \$\{secret.web\}, but no secret:web is declared before it",
        ),
        ([SECRET, template("${secret.wbe}")], 'no secret:wbe is declared before it; did you mean "web"'),
        ([SECRET, template("${fingerprint.web}")], "no certificate:web is declared before it$"),
        ([CERTIFICATE, template("${secret.web}")], "no secret:web is declared before it$"),
    ],
)
def test_a_secret_that_is_not_there_is_refused(items: list[object], why: str) -> None:
    with pytest.raises(Refused, match=why):
        read(*items)


def test_the_other_origins_secrets_are_out_of_reach() -> None:
    with pytest.raises(Refused, match="no secret:web is declared before it"):
        read(template("${secret.web}"), beside=("secret:web",))


def test_a_founders_resource_may_need_any() -> None:
    resources = read(directory("/a"), directory("/b", "directory:/a", role="founder"))
    assert resources[1].founder_only
    read(directory("/a", role="founder"), directory("/b", "directory:/a", role="founder"))


@pytest.mark.parametrize(
    "items",
    [
        [directory("/a", role="founder"), directory("/b", "directory:/a")],
        [{**SECRET, "role": "founder"}, template("${secret.web}")],
    ],
)
def test_a_joiner_is_not_left_without_what_it_needs(items: list[object]) -> None:
    with pytest.raises(Refused, match=r"is for every node, but .*, which it needs, is only a founder's"):
        read(*items)


def test_a_wrong_item_is_named_by_its_place() -> None:
    with pytest.raises(Refused, match=r"^resource\[1\]\.mode: "):
        read(directory("/a"), directory("/b", mode="x"))
    with pytest.raises(Refused, match=r"^resources\[0\] is a string"):
        parse_list(["x"], CONTEXT, where="resources")


def test_a_document() -> None:
    fields = Fields({"params": {"port": 5671, "host": "a", "tls": True, "off": False}, "resource": [{"kind": "x"}]})
    document = read_document(fields)
    fields.finish()
    assert document == Document({"port": "5671", "host": "a", "tls": "true", "off": "false"}, ({"kind": "x"},))
    assert read_document(Fields({})) == Document({}, ())


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"params": []}, "params is a list"),
        ({"params": {"x": 1.5}}, "params.x: a parameter is a string, a whole number, true or false"),
        ({"params": {"x": [1]}}, "params.x: a parameter is a string"),
        ({"params": {"x": None}}, "params.x: a parameter is a string"),
        ({"resource": {"kind": "x"}}, "resource: is an object; it must be a list"),
    ],
)
def test_a_wrong_document(value: object, why: str) -> None:
    with pytest.raises(Refused, match=why):
        read_document(Fields(value))


def test_a_misspelt_list_is_seen_by_whoever_finishes() -> None:
    fields = Fields({"resources": []})
    read_document(fields)
    with pytest.raises(Refused, match='resources: there is no such field here; did you mean "resource"'):
        fields.finish()


DOCUMENT = Document(
    {"port": "80", "folder": "/srv"}, (directory("${param.folder}/${node.name}"), template("${param.port}"))
)


def names(settings: Mapping[str, str]) -> list[str]:
    return [str(item["name"]) for item in fill_document(DOCUMENT, settings, "node-a")]


def test_parameters_have_defaults_and_are_set() -> None:
    assert names({}) == ["/srv/node-a", "/t"]
    assert names({"folder": "/opt"}) == ["/opt/node-a", "/t"]
    assert document_values(DOCUMENT, {"port": "81"}, "node-a") == {
        "param.port": "81",
        "param.folder": "/srv",
        "node.name": "node-a",
    }


def test_an_unknown_parameter_is_refused_with_the_nearest() -> None:
    with pytest.raises(Refused, match='there is no parameter "prot" here; did you mean "port"'):
        fill_document(DOCUMENT, {"prot": "1"}, "node-a")


def test_a_reference_to_no_parameter_is_refused_with_the_nearest() -> None:
    wrong = Document({"port": "80"}, (directory("/a"), directory("/b", mode="${param.prot}")))
    with pytest.raises(
        Refused, match=r'^resource\[1\].mode: nothing here is called \$\{param.prot\}; did you mean "param.port"'
    ):
        fill_document(wrong, {}, "node-a")


def test_what_the_machine_fills_stays_for_it() -> None:
    document = Document({"x": "1"}, (template("${state} ${secret.web} ${agent} ${param.x} $${y}"),))
    (item,) = fill_document(document, {}, "node-a")
    assert item["content"] == "${state} ${secret.web} ${agent} 1 $${y}"


def test_content_takes_no_part_unless_it_is_a_template() -> None:
    content = "${param.x} ${HOME} ${ $${"
    document = Document({"x": "1"}, ({"kind": "file", "name": "/${param.x}", "content": content},))
    (item,) = fill_document(document, {}, "node-a")
    assert (item["name"], item["content"]) == ("/1", content)


def test_a_kind_is_never_filled_in() -> None:
    """Else it could become a file after its content was taken for a template, or the other way round."""
    document = Document({"kind": "file"}, ({"kind": "${param.kind}", "name": "/x", "content": "$${x}"},))
    with pytest.raises(Refused, match=r'there is no kind "\$\{param.kind\}"'):
        parse_list(fill_document(document, {}, "node-a"), CONTEXT)


@given(st.text(st.sampled_from("${}secrt.wb") | st.characters(exclude_categories=["Cs"])))
def test_a_parameter_is_data_whatever_it_holds(value: str) -> None:
    document = Document({"x": ""}, (SECRET, template("<${param.x}>")))
    resources = parse_list(fill_document(document, {"x": value}, "node-a"), CONTEXT)
    assert resources[1].needs == ()
    assert isinstance(resources[1].spec, File)
    assert resources[1].spec.content == Inline(Template((f"<{value}>",)))


@given(st.text(st.sampled_from("/.${}secrt") | st.characters(exclude_categories=["Cs"])))
def test_a_parameter_in_a_path_is_part_of_a_path_or_refused(value: str) -> None:
    document = Document({"x": ""}, (directory("/srv/${param.x}"),))
    try:
        (resource,) = parse_list(fill_document(document, {"x": value}, "node-a"), CONTEXT)
    except Refused:
        return
    assert resource.name == f"/srv/{value}"
    assert ".." not in resource.name.split("/")


def test_two_ways_to_fill_are_one() -> None:
    """A bundle is filled where it is read; a list that travels is filled before."""
    values = document_values(DOCUMENT, {}, "node-a")
    there = parse_list(fill_document(DOCUMENT, {}, "node-a"), CONTEXT)
    assert parse_list(DOCUMENT.items, Context(Path("/state"), values)) == there


def test_an_item_that_is_no_object_is_refused() -> None:
    with pytest.raises(Refused, match=r"^resource\[0\] is a string"):
        fill_document(Document({}, ("x",)), {}, "node-a")


def test_a_containers_image_is_a_need_where_its_list_declares_it() -> None:
    image = {"kind": "image", "name": "app:1"}
    container = {"kind": "container", "name": "web", "image": "app:1"}
    assert read(image, container)[1].needs == ("image:app:1",)
    assert read(image, {**container, "needs": ["image:app:1"]})[1].needs == ("image:app:1",)
    assert read(container)[0].needs == ()
    assert read(container, image)[0].needs == ()
