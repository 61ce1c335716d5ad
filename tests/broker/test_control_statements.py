"""What nodes state, and what the control plane makes of it; whatever it can't understand stops nobody else."""

from __future__ import annotations

import json
import time

import pytest

from agent.envelope import verifies
from agent.resources import Document
from tests.broker.plane import Peer, serving
from tests.broker.rabbit import CONTROL_PASSWORD


@pytest.fixture
def plane(rabbit, ground):
    with serving(rabbit, ground) as plane:
        yield plane


@pytest.fixture
def node(plane):
    """A node that holds file:/etc/x and file:/etc/y, and carries two ports."""
    with plane.join("a") as node:
        serial = plane.declare("a", "/etc/x", "/etc/y")
        node.declaration()
        node.report(serial, applied=["file:/etc/x", "file:/etc/y"], carried=[5671, 15671])
        plane.wait_for("a", lambda detail: detail.carried != ())
        yield node


def settled(plane, node):
    """What is known once everything sent before has been dealt with."""
    node.send("report", {"node": node.name, "refused": "marker"}, user_id=node.account, timestamp=1)
    return plane.wait_for(node.name, lambda detail: detail.refusal is not None and detail.refusal.why == "marker")


def test_a_report_is_known_with_all_it_says(plane, node):
    node.report(1, applied=["file:/etc/x"], failed={"file:/etc/y": "the disk is <full> & more"}, carried=[80, 80, 22])
    detail = plane.wait_for("a", lambda detail: detail.failures)
    assert detail.holdings == ("file:/etc/x",)
    assert detail.failures == {"file:/etc/y": "the disk is <full> & more"}
    assert detail.carried == (22, 80)
    assert detail.row.version == "7.7"
    row = plane.mesh().nodes[0]
    assert (row.name, row.presence.value, row.wanted, row.applied) == ("a", "here", 1, 1)
    assert (row.carried, row.failures, row.refusal) == (2, 1, "")


@pytest.mark.parametrize(
    "say",
    [
        lambda node: node.alive(),
        lambda node: node.report(0),
        lambda node: node.report(0, applied=["file:/etc/z"]),
        lambda node: node.report(1, refused="no", applied=["file:/etc/z"], carried=[1]),
        lambda node: node.report(900, refused="no"),
        lambda node: node.report(None, refused="no"),
        lambda node: node.report(None),
    ],
    ids=[
        "alive",
        "serial 0",
        "serial 0 with ids",
        "refused",
        "refused, far ahead",
        "refused, no serial",
        "a bare peer's",
    ],
)
def test_what_says_nothing_of_holdings_leaves_them(plane, node, say):
    say(node)
    detail = settled(plane, node)
    assert detail.holdings == ("file:/etc/x", "file:/etc/y")
    plane.declare("a", "/etc/z")
    while (declaration := node.declaration()).serial < 2:
        pass
    assert declaration.says["recovery"] == ["file:/etc/x", "file:/etc/y"]


def test_a_refused_report_leaves_the_ports_and_is_shown(plane, node):
    serial = plane.declare("a", "/etc/z")
    node.report(serial, refused="no such\nkind\x1b[31m", carried=[1])
    detail = plane.wait_for("a", lambda detail: detail.refusal)
    assert detail.carried == (5671, 15671)
    assert (detail.refusal.why, detail.refusal.serial) == ("no such kind[31m", serial)
    row = plane.mesh().nodes[0]
    assert (row.wanted, row.applied, row.refusal) == (2, 1, "no such kind[31m")


def test_a_peer_without_headers_is_understood(plane, node):
    node.report(None, applied=["web", "db"], carried=[4369])
    detail = plane.wait_for("a", lambda detail: detail.holdings == ("db", "web"))
    assert detail.carried == (4369,)
    assert detail.row.applied == 1


def test_another_machine_without_headers_is_sent_what_the_name_is_to_hold(plane, node):
    plane.declare("a", "/etc/x")
    node.declaration()
    node.report(None, applied=["file:/etc/x"])
    plane.wait_for("a", lambda detail: detail.holdings)
    with plane.join("a") as new:
        new.report(None)
        assert [item["name"] for item in new.declaration().says["resources"]] == ["/etc/x"]
        new.report(None, carried=[80])
        plane.wait_for("a", lambda detail: detail.carried == (80,))
        assert new.has_nothing()
        assert plane.detail("a").holdings == ("file:/etc/x",)


def test_last_seen_follows_alives_to_now_and_reports_to_their_own_time(plane):
    with plane.join("a") as node:
        node.report(0, timestamp=int(time.time()) - 3600)
        detail = plane.wait_for("a", lambda detail: detail.row.last_seen)
        assert (detail.row.presence.value, round(detail.row.silent, -2)) == ("out of touch", 3600)
        node.report(0, timestamp=int(time.time()) - 7200, carried=[1])
        assert plane.wait_for("a", lambda detail: detail.carried).row.last_seen == detail.row.last_seen
        node.report(0, timestamp=2**33, carried=[2])
        assert plane.wait_for("a", lambda detail: detail.carried == (2,)).row.last_seen <= time.time()
        before = time.time()
        node.alive()
        assert plane.wait_for("a", lambda detail: detail.row.last_seen >= before).row.presence.value == "here"


def test_a_clock_that_is_off_is_told(plane):
    with plane.join("a") as node:
        for at, shown in [(int(time.time()) + 3600, 3600), (int(time.time()) - 7200, -7200)]:
            node.send("alive", {"node": "a"}, user_id=node.account, timestamp=at)
            detail = plane.wait_for("a", lambda detail, at=shown: (detail.row.clock_offset or 0) * at > 0)
            assert detail.row.clock_offset == pytest.approx(shown, abs=60)
        node.alive()  # it doesn't tell the time
        plane.wait_for("a", lambda detail: detail.row.clock_offset is None)


# Serials


def test_a_lower_serial_gets_the_wanted_declaration_again_once_per_change(plane, node):
    plane.declare("a", "/etc/x")
    wanted = node.declaration()
    for serial, again in [(1, False), (0, True), (0, False), (1, True), (1, False), (2, False), (1, True)]:
        node.report(serial, applied=["file:/etc/x"])
        if again:
            got = node.declaration()
            assert (got.data, got.signature) == (wanted.data, wanted.signature)
        else:
            settled(plane, node)
            node.report(None, refused="another")
            plane.wait_for("a", lambda detail: detail.refusal.why == "another")
            assert node.has_nothing()


def test_a_higher_serial_gets_the_same_content_signed_anew(plane, node):
    node.report(2**52, applied=["file:/etc/x", "file:/etc/old"])
    declaration = node.declaration()
    assert declaration.serial == 2**52 + 1
    assert [item["name"] for item in declaration.says["resources"]] == ["/etc/x", "/etc/y"]
    assert declaration.says["recovery"] == ["file:/etc/x"]
    signer = plane.control()._signer()
    assert verifies(signer, declaration.data, declaration.signature)
    node.report(2**52, applied=["file:/etc/x", "file:/etc/old"])
    settled(plane, node)
    assert node.has_nothing()


def test_a_higher_serial_of_a_node_that_was_told_nothing_is_remembered(plane):
    with plane.join("a") as node:
        node.report(41, applied=["file:/etc/x"])
        settled(plane, node)
        assert node.has_nothing()
        assert plane.declare("a", "/etc/y") == 42
        assert node.declaration().says["recovery"] == []


# What can't be understood


def parked(plane):
    with Peer(plane.rabbit, "control", CONTROL_PASSWORD) as peer:
        return peer.get("control.parked")


@pytest.mark.parametrize(
    ("key", "body", "properties", "reason"),
    [
        ("report", b"\xff\xfe", {}, "not readable JSON"),
        ("report", b"{" * 50_000, {}, "not readable JSON"),
        ("alive", b"", {}, "not readable JSON"),
        ("report", {"node": "a", "applied": "web"}, {}, "report.applied"),
        ("report", {"node": "a", "failed": {"web": 1}}, {}, "report.failed.web"),
        ("report", {"node": "a", "carried": [0]}, {}, "port"),
        ("report", {"node": "a", "applied": [f"{at}" for at in range(20_001)]}, {}, "20001 ids"),
        ("report", {"node": "b"}, {}, "speaks for"),
        ("alive", {"node": "ab"}, {}, "speaks for"),
        ("alive", {"node": "a"}, {"user_id": None}, "no user_id"),
        ("report", {"node": "a"}, {"user_id": None}, "no user_id"),
        ("report", {"node": "a"}, {"headers": {"serial": "7"}}, "serial"),
        ("report", {"node": "a"}, {"headers": {"serial": -1}}, "serial"),
        ("report", {"node": "a"}, {"headers": {"serial": 2**52 + 1}}, "2^52"),
    ],
)
def test_what_is_not_understood_is_parked_and_the_next_is_not(plane, node, key, body, properties, reason):
    before = plane.detail("a")
    node.send(
        key,
        body,
        **{"user_id": node.account, "message_id": "m-1", "timestamp": 1234, "type": "t\x1b", **properties},
    )
    node.report(1, applied=["file:/etc/x"], carried=[80])
    after = plane.wait_for("a", lambda detail: detail.carried == (80,))
    assert after.row.applied == before.row.applied
    plane.wait_for_parked(1)
    kept, kept_body = parked(plane)
    assert reason in kept.headers["reason"]
    assert kept.user_id is None
    assert kept.headers["original.routing_key"] == key
    assert kept.headers.get("original.user_id") == properties.get("user_id", node.account)
    assert (kept.headers["original.message_id"], kept.headers["original.timestamp"]) == ("m-1", "1234")
    assert kept.headers["original.type"] == "t"
    for name, value in properties.get("headers", {}).items():
        assert kept.headers[f"original.header.{name}"] == str(value)
    assert kept_body == (body if isinstance(body, bytes) else json.dumps(body).encode())[: 256 * 1024]


def test_headers_of_every_shape_park_nothing_but_themselves(plane, node):
    odd = {"ä" * 80: "x" * 5000, "list": [1, {"a": None}], "yes": True, "no": None, "bytes": b"\xff", "": ""}
    headers = {**odd, **{f"h{at}": at for at in range(200)}}
    node.send("report", b"no JSON", user_id=node.account, headers=headers, correlation_id="ü" * 100)
    node.report(1, carried=[80])
    plane.wait_for("a", lambda detail: detail.carried == (80,))
    plane.wait_for_parked(1)


def test_a_node_that_never_enrolled_here_is_parked(plane, rabbit):
    rabbit.accounts().make_node("ghost", "password-of-ghost")
    with Peer(rabbit, "node.ghost", "password-of-ghost") as ghost:
        ghost.send("alive", {"node": "ghost"}, user_id="node.ghost")
        ghost.send("report", {"node": "ghost"}, user_id="node.ghost")
        plane.wait_for_parked(2)
    assert parked(plane)[0].headers["reason"] == "no node of this name has enrolled"
    assert plane.mesh().nodes == ()


def test_long_texts_are_bounded(plane, node):
    failed = {f"file:/{at}": "x" * 10_000 for at in range(1_200)}
    node.report(1, failed=failed)
    detail = plane.wait_for("a", lambda detail: detail.failures)
    assert len(detail.failures) == 1_001
    assert max(map(len, detail.failures.values())) == 2_000


# Signatures


def test_a_signed_statement_counts_once(plane):
    with plane.join("a") as node:
        node.state("alive", 1)
        node.state("report", 2, 0, carried=[80])
        plane.wait_for("a", lambda detail: detail.carried == (80,))
        node.state("report", 2, 0, carried=[81])
        node.state("report", 1, 0, carried=[82])
        node.state("report", 3, 0, failed={"file:/marker": "no"}, carried=[80])
        assert plane.wait_for("a", lambda detail: detail.failures).carried == (80,)
    assert plane.mesh().parked == 0


def test_a_wrong_signature_is_parked_and_changes_nothing(plane):
    with plane.join("a") as node, plane.join("b") as other:
        node.state("report", 9, 0, carried=[81], by=other.key)
        node.state("alive", 10, by=other.key)
        plane.wait_for_parked(2)
        assert plane.detail("a").row.presence.value == "never spoken"
        node.state("report", 1, 0, carried=[80])
        plane.wait_for("a", lambda detail: detail.carried == (80,))
    assert "signature" in parked(plane)[0].headers["reason"]


def test_signatures_can_be_required(rabbit, ground):
    with serving(rabbit, ground, require_signatures=True) as plane, plane.join("a") as node:
        node.alive()
        node.report(0, carried=[80])
        plane.wait_for_parked(2)
        assert plane.detail("a").row.presence.value == "never spoken"
        node.state("alive", 1)
        plane.wait_for("a", lambda detail: detail.row.last_seen)


def test_a_mistake_of_ours_over_one_statement_costs_no_other(plane, node):
    with plane.join("b") as other:
        plane.control()._store._database.execute(
            "CREATE TRIGGER mistake BEFORE UPDATE ON node WHEN new.carried = '[13]' "
            "BEGIN SELECT RAISE(ABORT, 'a mistake'); END"
        )
        for at in (12, 13, 14):
            node.report(1, carried=[at])
            other.report(0, carried=[at])
        for name in ("a", "b"):
            plane.wait_for(name, lambda detail: detail.carried == (14,))
        plane.wait_for_parked(2)


def test_what_one_node_can_not_be_told_again_keeps_no_other_waiting(plane, node):
    reads = {"kind": "file", "name": "/etc/x", "template": True, "content": "${secret.db}"}
    with plane.control() as control, plane.join("b") as other:
        control.secrets.set("db", b"a value")
        control.declare("a", Document({}, (reads,)), {})
        # As if it had joined with a key that is none.
        control._store._database.execute("DELETE FROM sealed")
        control._store._database.execute("UPDATE node SET public_key = ? WHERE name = 'a'", (bytes(32),))
        node.report(7, carried=[80])
        other.report(0, carried=[81])
        plane.wait_for("b", lambda detail: detail.carried == (81,))
        assert plane.detail("a").carried == (80,)
