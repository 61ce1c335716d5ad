"""From `declare` to what the node says of it, over a real broker."""

from __future__ import annotations

import pytest

from agent.control.declaring import Applied, RefusedBy, StillWaiting
from agent.control.plane import open_control
from agent.envelope import verifies
from agent.errors import Refused
from agent.resources import Document
from tests.broker.plane import Plane, files, serving, write_settings
from tests.broker.rabbit import wait_until


@pytest.fixture
def plane(rabbit, ground):
    with serving(rabbit, ground) as plane:
        yield plane


def test_a_declaration_arrives_signed_and_its_report_is_heard(plane):
    with plane.newcomer("a") as newcomer:
        reply = newcomer.enrol()
    items = ({"kind": "file", "name": "/etc/${param.app}.conf", "content": "é <>&"}, {"kind": "package", "name": "jq"})
    document = Document({"app": "web"}, items)
    with newcomer.node(reply) as node, plane.control() as control:
        declared = control.declare("a", document, {"app": "db"})
        assert (declared.node, declared.serial, declared.has_spoken) == ("a", 1, False)
        declaration = node.declaration()
        assert verifies(newcomer.token.signer, declaration.data, declaration.signature)
        issued = declaration.says.pop("issued_at")
        assert issued.endswith("Z")
        assert declaration.says == {
            "type": "declaration/v1",
            "node": "a",
            "serial": 1,
            "resources": [
                {"kind": "file", "name": "/etc/db.conf", "content": "é <>&"},
                {"kind": "package", "name": "jq"},
            ],
            "recovery": [],
        }
        properties = declaration.properties
        assert (properties.type, properties.delivery_mode, properties.content_type) == (
            "declaration",
            2,
            "application/json",
        )
        assert (properties.message_id, properties.user_id) == ("a.1", None)
        assert properties.timestamp is not None
        assert node.has_nothing()

        node.report(1, applied=["file:/etc/db.conf", "package:jq"], failed={"package:jq": "no such package"})
        assert control.wait(declared, 20) == Applied({"package:jq": "no such package"})
        assert control.node("a").holdings == ("file:/etc/db.conf", "package:jq")


def test_a_refusal_comes_back_in_words(plane):
    with plane.join("a") as node, plane.control() as control:
        declared = control.declare("a", files("/etc/x"), {})
        node.report(0, refused="an earlier one, of unknown serial", timestamp=1)
        node.report(declared.serial, refused="file:/etc/x is carried here")
        said = control.wait(declared, 20)
        assert isinstance(said, RefusedBy)
        plane.wait_for("a", lambda detail: detail.refusal.serial == declared.serial)
        assert control.wait(declared, 20) == RefusedBy("file:/etc/x is carried here")
        node.report(0)
        again = control.declare("a", files("/etc/y"), {})
        assert control.wait(again, 0) == StillWaiting()


def test_every_node_hears_its_own(plane):
    with plane.join("a") as a, plane.join("ab") as ab:
        plane.declare("ab", "/etc/of-ab")
        plane.declare("a", "/etc/of-a")
        assert a.declaration().says["resources"][0]["name"] == "/etc/of-a"
        assert ab.declaration().says["resources"][0]["name"] == "/etc/of-ab"
        assert a.has_nothing()
        assert ab.has_nothing()


@pytest.mark.parametrize(
    ("name", "document", "options", "why"),
    [
        ("aa", files("/etc/x"), {}, 'no node "aa"; did you mean "a"'),
        ("a", files("etc/x"), {}, r"resource\[0\]\.name"),
        ("a", files(), {}, "--retire"),
        ("a", files("/etc/x", "/etc/x"), {}, "twice"),
    ],
)
def test_a_refused_list_changes_nothing(plane, name, document, options, why):
    with plane.join("a") as node, plane.control() as control:
        with pytest.raises(Refused, match=why):
            control.declare(name, document, options)
        assert control.node("a").row.wanted == 0
        assert node.has_nothing()


def test_an_empty_list_retires_when_it_says_so(plane):
    with plane.join("a") as node:
        plane.declare("a", "/etc/x")
        node.declaration()
        node.report(1, applied=["file:/etc/x"])
        plane.wait_for("a", lambda detail: detail.holdings)
        plane.declare("a", retire=True)
        says = node.declaration().says
        assert (says["resources"], says["retire"], says["recovery"]) == ([], True, ["file:/etc/x"])


def test_what_is_declared_while_nobody_serves_is_sent_later(rabbit, ground):
    plane = Plane(rabbit, ground)
    plane.start()
    with plane.join("a") as node:
        plane.stop()
        assert not plane.mesh().serving
        serial = [plane.declare("a", f"/etc/{at}") for at in range(3)][-1]
        assert node.has_nothing()
        plane.start()
        try:
            assert plane.mesh().serving
            assert node.declaration().serial == serial
            assert node.has_nothing()
        finally:
            plane.stop()


def test_what_is_declared_while_the_broker_is_away_is_sent_later(plane):
    node = plane.join("a")
    plane.rabbit.stop()
    serial = plane.declare("a", "/etc/x")
    plane.rabbit.start()
    with node:
        assert node.declaration().serial == serial


def test_a_queue_that_is_missing_holds_nobody_else_up(plane, caplog):
    plane.join("a")
    with plane.join("b") as b:
        plane.rabbit.accounts().delete_queue("node.a")
        serial = plane.declare("a", "/etc/x")
        for at in range(3):
            plane.declare("b", f"/etc/{at}")
            assert b.declaration().serial == at + 1
        wait_until(lambda: "The declaration 1 for a waits" in caplog.text, 20)
        with plane.join("a") as a:
            assert a.declaration().serial == serial
    assert caplog.text.count("The declaration 1 for a waits") == 1


def test_elsewhere_than_on_the_founder_it_says_where_to_run(ground):
    with pytest.raises(Refused, match="run this on the founder"):
        open_control(ground)


def test_before_the_control_plane_has_started_it_says_so(rabbit, ground):
    write_settings(rabbit, ground)
    with pytest.raises(Refused, match="not started yet"):
        open_control(ground)
