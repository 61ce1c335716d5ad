"""The whole line over a real broker: a machine joins, is declared to, applies or refuses, reports, and is seen."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pika.exceptions
import pytest

from agent.envelope import SigningKey
from agent.wire import Signed
from tests.broker.nodes import CARRIED_PORTS, SOON, Founder, Machine, Mesh, declaration, mesh_of, refused, send, signed
from tests.broker.plane import Node, Peer
from tests.broker.rabbit import CONTROL_PASSWORD, Rabbit, wait_until


@pytest.fixture
def mesh(rabbit: Rabbit, ground: Path) -> Iterator[Mesh]:
    with mesh_of(rabbit, ground) as mesh:
        yield mesh


def speaker(mesh: Mesh, machine: Machine) -> Node:
    """Whoever has this machine's credentials."""
    return Node(mesh.rabbit, machine.name, machine.membership()["password"], machine.key)


def test_a_machine_joins_is_declared_to_applies_and_is_seen(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, agent = mesh.joined("b")
    assert founder.detail("b").carried == CARRIED_PORTS
    wait_until(lambda: "join.b" not in mesh.accounts(), SOON)
    assert not (machine.state / "identity" / "token").exists()
    wanted = [machine.a_file("one"), machine.a_file("two", "second\n", mode="0600")]
    done = founder.ask("declare", "b", "-", stdin=json.dumps(wanted))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["declaration 1 for b is signed and on its way", "b has applied it"]
    assert (machine.targets / "two").read_text() == "second\n"
    shown = json.loads(founder.ask("node", "list", "-o", "json").stdout)
    (row,) = shown["nodes"]
    assert (row["name"], row["state"], row["wanted"], row["applied"]) == ("b", "here", 1, 1)
    assert (row["failed"], row["refuses"], row["carried_ports"], shown["parked"]) == (0, None, 1, 0)
    detail = founder.detail("b")
    assert detail.holdings == (machine.id("one"), machine.id("two"))
    assert detail.profile["arch"]
    assert mesh.queues()["node.b"] == (0, 0)
    assert agent.end() == 0


def test_what_fails_is_reported_and_the_rest_is_made(mesh: Mesh) -> None:
    machine, _ = mesh.joined("b")
    wanted = [machine.a_file("absent/file"), machine.a_file("one")]
    done = mesh.founder.ask("declare", "b", "-", stdin=json.dumps(wanted))
    assert done.returncode == 2
    assert machine.id("absent/file") in done.stdout
    detail = mesh.founder.detail("b")
    assert (detail.row.applied, list(detail.failures)) == (1, [machine.id("absent/file")])
    assert (machine.targets / "one").exists()


# Refusals


class Hostile:
    """A control plane that is wrong about a node which has accepted serial 3: a mistake at a time, all later ones too.

    `mistaken` are a declaration's fields with every mistake of its head; the rules are asked in the order in which
    the cases below mend them.
    """

    def __init__(self, machine: Machine, key: SigningKey) -> None:
        self.machine = machine
        self.key = key
        self.unknown = {"kind": "portal", "name": "x"}
        self.hopeless = machine.a_file("hopeless", owner="no-such-user")
        self.twice = {"kind": "directory", "name": str(machine.targets / "hopeless")}
        self.mistaken = declaration(
            "c", 1, self.unknown, type="declaration/v2", expires_at="2020-01-01T00:00:00Z", retier=True
        )

    def mended(self, **fields: Any) -> bytes:
        """Signed by the right key, with these fields as they should be; one that is None is left out."""
        document = {**self.mistaken, **fields}
        return signed({name: value for name, value in document.items() if value is not None}, self.key)

    def listing(self, *items: Mapping[str, Any]) -> bytes:
        """As `mended`, with nothing wrong but the list."""
        return self.mended(
            type="declaration/v1", node="b", serial=4, retier=None, expires_at=None, resources=list(items)
        )

    def envelope(self, data: bytes, signature: bytes) -> bytes:
        return Signed(data, signature).encode()

    @property
    def data(self) -> bytes:
        return json.dumps(self.mistaken).encode()


# What is sent, the serial that the refusal states, and a part of its reason, in the order of the rules.
REFUSALS: dict[str, tuple[Callable[[Hostile], bytes], int | None, str]] = {
    "no JSON": (lambda h: b"\xff", None, "the envelope is malformed"),
    "no object": (lambda h: b"[]", None, "the envelope is malformed"),
    "no fields": (lambda h: b"{}", None, "the envelope is malformed"),
    "no base64": (lambda h: b'{"declaration":"e30","signature":""}', None, "the envelope is malformed"),
    "no declaration": (lambda h: h.envelope(b"", h.key.sign(b"")), None, "it holds no declaration"),
    "no signature": (lambda h: h.envelope(h.data, b""), None, "the signature has 0 bytes, not 64"),
    "half a signature": (lambda h: h.envelope(h.data, h.key.sign(h.data)[:32]), None, "32 bytes, not 64"),
    "another's bytes": (lambda h: h.envelope(h.data + b" ", h.key.sign(h.data)), None, "does not verify"),
    "a stranger's key": (lambda h: signed(h.data, SigningKey(b"s" * 32)), None, "does not verify"),
    "unparsable": (lambda h: signed(b'{"type":', h.key), None, "JSON"),
    "a key twice": (lambda h: signed(h.data[:-1] + b', "node": "b"}', h.key), None, "twice"),
    "another type": (lambda h: h.mended(), 1, "declaration/v2"),
    "another node's": (lambda h: h.mended(type="declaration/v1"), 1, 'is for node "c"'),
    "a lower serial": (lambda h: h.mended(type="declaration/v1", node="b"), 1, "serial 1 is lower than 3"),
    "the same serial": (lambda h: h.mended(type="declaration/v1", node="b", serial=3), 3, "with other content"),
    "an unknown field": (lambda h: h.mended(type="declaration/v1", node="b", serial=4), 4, "retier"),
    "expired": (lambda h: h.mended(type="declaration/v1", node="b", serial=4, retier=None), 4, "it expired"),
    "an unknown kind": (lambda h: h.listing(h.unknown, h.hopeless), 4, "portal"),
    "an empty list": (lambda h: h.listing(), 4, "an empty list would remove 1 assigned"),
    "a carried path": (
        lambda h: h.listing({"kind": "file", "name": str(h.machine.place / "carried"), "content": ""}, h.hopeless),
        4,
        "place/carried",
    ),
    "a carried port": (
        lambda h: h.listing({"kind": "reserved", "name": "mine", "ports": ["127.0.0.1:4022"]}, h.hopeless),
        4,
        "4022",
    ),
    "one path twice": (lambda h: h.listing(h.hopeless, h.twice), 4, "hopeless"),
    "the agent's folder": (
        lambda h: h.listing({"kind": "file", "name": str(h.machine.state / "x"), "content": ""}, h.hopeless),
        4,
        "state",
    ),
    "impossible here": (lambda h: h.listing(h.hopeless), 4, "can never be made on this machine"),
}


def test_each_rule_refuses_in_its_order_and_nothing_changes(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, agent = mesh.joined("b", alive_interval=60.0)
    for content in ("1", "2", "3"):
        serial = founder.declare_list("b", machine.a_file("kept", content))
    founder.wait_for_applied("b", serial)
    before = machine.digest(), founder.detail("b").holdings, founder.wanted("b")
    hostile = Hostile(machine, founder.key)
    for name, (body, stated, part) in REFUSALS.items():
        refusal = refused(mesh.founder, "b", body(hostile))
        assert part in refusal.why, (name, refusal)
        assert refusal.serial == stated, (name, refusal)
        assert machine.digest() == before[0], name
    assert "of type other" in refused(mesh.founder, "b", hostile.listing(machine.a_file("kept")), type="other").why
    assert (machine.digest(), founder.detail("b").holdings, founder.wanted("b")) == before
    assert agent.output.count("refused a declaration: ") == len(REFUSALS) + 1
    assert founder.detail("b").row.applied == serial
    serial = founder.declare_list("b", machine.a_file("next"))
    founder.wait_for_applied("b", serial)
    assert [path.name for path in machine.targets.iterdir()] == ["next"]
    assert agent.output.count("connected to") == 1
    assert mesh.queues()["node.b"] == (0, 0)
    assert founder.mesh().parked == 0


def test_the_same_bytes_again_put_right_what_was_changed(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, agent = mesh.joined("b")
    founder.wait_for_applied("b", founder.declare_list("b", machine.a_file("one")))
    (machine.targets / "one").write_text("changed by hand")
    send(mesh.founder, "b", founder.envelope("b"))
    agent.wait_for("changed", SOON)
    wait_until(lambda: (machine.targets / "one").read_text() == "x", SOON)
    assert "refused" not in agent.output


# What the control plane remembers


def test_what_says_nothing_of_holdings_leaves_the_recovery_copy(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, agent = mesh.joined("b")
    kept = [machine.id("one"), machine.id("two")]
    founder.wait_for_applied("b", founder.declare_list("b", machine.a_file("one"), machine.a_file("two")))
    refused(mesh.founder, "b", b"no envelope")
    seen = founder.detail("b").row.last_seen
    founder.wait_for("b", lambda detail: detail.row.last_seen != seen)  # by an alive
    assert agent.end() == 0
    with speaker(mesh, machine) as node:
        node.report(0, carried=[1])
        founder.wait_for("b", lambda detail: detail.carried == (1,))
    serial = founder.declare_list("b", machine.a_file("one"))
    assert founder.wanted("b")["recovery"] == kept
    machine.linked()
    founder.wait_for_applied("b", serial)
    assert machine.recovery() == kept
    assert founder.detail("b").holdings == (machine.id("one"),)


def test_a_lost_ledger_comes_back_by_the_recovery_copy(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, agent = mesh.joined("b")
    for content in ("first", "second"):
        serial = founder.declare_list("b", machine.a_file("one", content), machine.a_file("two", content))
        founder.wait_for_applied("b", serial)
    agent.kill()
    for path in machine.state.glob("ledger.db*"):
        path.unlink()
    machine.linked()
    wait_until(lambda: machine.recovery() != [], SOON)  # told again, having stated serial 0
    refusal = refused(mesh.founder, "b", signed(declaration("b", 3), founder.key))
    assert "would remove 2 assigned" in refusal.why
    founder.wait_for_applied("b", founder.declare_list("b", machine.a_file("one")))
    assert [path.name for path in machine.targets.iterdir()] == ["one"]


def test_what_is_parked_is_counted_and_stops_nobody(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, _ = mesh.joined("b", alive_interval=60.0)
    with speaker(mesh, machine) as node:
        node.send("report", b"no JSON", user_id="node.b")
        node.send("report", {"node": "b", "applied": ["file:/forged"]})  # nothing proves who sent it
        node.send("report", {"node": "c", "applied": ["file:/forged"]}, user_id="node.b")
        node.send("enrol", {"node": "b", "secret": "s", "public_key": "AAAA"}, reply_to="node.b")
        founder.wait_for_applied("b", founder.declare_list("b", machine.a_file("one")))
        node.send("report", {"node": "c"}, user_id="node.c")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id"):
            node.has_nothing()
    founder.wait_for_parked(4)
    assert json.loads(founder.ask("node", "list", "-o", "json").stdout)["parked"] == 4
    assert founder.ask("node", "list").stdout.splitlines()[-1] == "4 messages parked"
    assert founder.detail("b").holdings == (machine.id("one"),)
    assert mesh.queues()["node.b"] == (0, 0)


# Other implementations


class PlainPlane(Peer):
    """A control plane of another kind: bodies and what a reply can't do without, no types, headers or times."""

    def __init__(self, founder: Founder, node: str) -> None:
        super().__init__(founder.rabbit, "control", CONTROL_PASSWORD)
        self.founder = founder
        self.node = node
        self.arrived: list[tuple[Any, bytes]] = []

    def __enter__(self) -> PlainPlane:
        super().__enter__()
        self.channel.basic_consume(
            "control", lambda _c, _m, properties, body: self.arrived.append((properties, body)), auto_ack=True
        )
        return self

    def next(self) -> tuple[Any, dict[str, Any]]:
        """The next message: its properties and its body."""
        deadline = time.monotonic() + SOON
        while not self.arrived:
            assert time.monotonic() < deadline, "nothing came"
            self.connection.process_data_events(0.05)
        properties, body = self.arrived.pop(0)
        return properties, json.loads(body)

    def answer(self, **fields: Any) -> None:
        """Let the next one in who asks."""
        properties, body = self.next()
        assert set(body) == {"node", "secret", "public_key", "profile"}
        self.rabbit.accounts().make_node(self.node, "a password")
        reply = {
            "accepted": True,
            "password": "a password",
            "signer": base64.b64encode(self.founder.key.public).decode("ascii"),
            **fields,
        }
        asked = {"exchange": "", "correlation_id": properties.correlation_id}
        self.send(properties.reply_to, reply, **asked)

    def declare(self, *items: Mapping[str, Any]) -> None:
        self.send(f"node.{self.node}", signed(declaration(self.node, 1, *items), self.founder.key), exchange="")

    def report(self) -> tuple[Any, dict[str, Any]]:
        """The next report; alives are passed over."""
        while True:
            properties, body = self.next()
            assert properties.user_id == f"node.{self.node}"
            if "version" in properties.headers and "serial" in properties.headers:
                return properties, body
            assert body == {"node": self.node}
            assert properties.expiration == "1000"


def colons(pin: str) -> str:
    """A fingerprint as openssl prints it."""
    return ":".join(pin[at : at + 2] for at in range(0, len(pin), 2)).upper()


def test_a_control_plane_that_leaves_out_what_it_can_is_understood(mesh: Mesh) -> None:
    machine = mesh.machine("b")
    token = mesh.founder.token("b")
    mesh.founder.stop()
    agent = machine.up(token)
    with PlainPlane(mesh.founder, "b") as plane:
        plane.answer(
            fingerprint=colons(mesh.rabbit.fingerprint), broker=str(mesh.rabbit.address), comment="of another kind"
        )
        properties, body = plane.report()
        assert (properties.headers["serial"], body) == (0, {"node": "b", "carried": list(CARRIED_PORTS)})
        plane.declare(machine.a_file("one"))
        properties, body = plane.report()
        applied = {"node": "b", "applied": [machine.id("one")], "carried": list(CARRIED_PORTS)}
        assert (properties.headers["serial"], body) == (1, applied)
        send(mesh.founder, "b", b"{}")
        properties, body = plane.next()
        while "refused" not in body:
            properties, body = plane.next()
        assert ("serial" in properties.headers, set(body)) == (False, {"node", "refused"})
    assert agent.output.count("enrolled as b") == 1


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"signer": base64.b64encode(b"s" * 32).decode("ascii")}, "another signer"),
        ({"node": "c"}, 'is for node "c"'),
        ({"password": ""}, "no password"),
        ({"accepted": False, "refusal": "not\x1b[31m today"}, "refused to let this machine join: not [31m today"),
    ],
)
def test_an_answer_that_is_not_the_tokens_is_not_believed(mesh: Mesh, fields: dict[str, Any], why: str) -> None:
    machine = mesh.machine("b")
    token = mesh.founder.token("b")
    mesh.founder.stop()
    agent = machine.up(token)
    with PlainPlane(mesh.founder, "b") as plane:
        plane.answer(**fields)
        agent.wait_for(why, SOON)
        assert not (machine.state / "identity" / "membership.json").exists()
        plane.answer()  # it asks again
        agent.wait_for("waiting for declarations", SOON)


def test_an_alive_that_nobody_heard_in_time_is_gone_and_not_parked(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, agent = mesh.joined("b")
    founder.stop()
    wait_until(lambda: mesh.queues()["control"][0] > 0, SOON)
    assert agent.end() == 0  # it would say another every second
    with speaker(mesh, machine) as node:
        node.send("alive", {"node": "b"}, user_id="node.b", expiration="100")
    wait_until(lambda: mesh.queues()["control"] == (0, 0), SOON)
    founder.start()
    machine.linked()
    founder.wait_for_applied("b", founder.declare_list("b", machine.a_file("one")))
    assert mesh.queues()["control.parked"] == (0, 0)
