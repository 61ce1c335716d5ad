from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent.bundle import Bundle
from agent.envelope import SigningKey
from agent.errors import Refused
from agent.kinds import KINDS
from agent.kinds.kind import Machine
from agent.node import substrate
from agent.node.identity import Identity, Role, Self
from agent.node.ledger import Ledger, open_ledger
from agent.node.life import Node
from agent.node.origins import carried_ports, carried_resources, last_declared, taken
from agent.node.worker import NOTHING_ACCEPTED, Job
from agent.reconcile import Reconciler
from agent.resources import Context, Origin, Resource, parse_list

SIGNER = SigningKey(b"s" * 32)


def bundle(*resources: Mapping[str, object]) -> Bundle:
    document = {"name": "b", "resource": list(resources)}
    return Bundle("b", "ab" * 32, document, {}, Path("/nowhere"))


def sshd(*ports: str) -> dict[str, object]:
    return {"kind": "reserved", "name": "sshd", "ports": list(ports)}


def parsed(*items: Mapping[str, object]) -> tuple[Resource, ...]:
    return parse_list(items, Context(Path("/state")))


@pytest.fixture
def ledger(ground: Path) -> Iterator[Ledger]:
    (ground / "state").mkdir()
    opened = open_ledger(ground / "state", time.time, write=True)
    yield opened
    opened.close()


def node(ground: Path, ledger: Ledger, *resources: Mapping[str, object]) -> Node:
    state = ground / "state"
    loaded = substrate.load(bundle(*resources), state, "a", {}, founder=False)
    machine = Machine(state, b"k" * 32, loaded.read_blob)
    return Node(
        state,
        Self("a", Role.JOINER),
        Identity(state),
        ledger,
        Reconciler(ledger, machine, KINDS, time.monotonic),
        loaded,
    )


def test_what_a_newer_bundle_drops_still_claims_what_it_holds(ground: Path, ledger: Ledger) -> None:
    kept = {"kind": "reserved", "name": "kept", "ports": ["[::1]:25", "25/udp"]}
    before = node(ground, ledger, sshd("22"), kept)
    assert [one.id for one in carried_resources(before.substrate, ledger)] == ["reserved:sshd", "reserved:kept"]
    assert before.raise_substrate((), lambda step: None, lambda: False).failed == {}
    ledger.apply(
        Origin.ASSIGNED, parsed({"kind": "reserved", "name": "theirs", "ports": ["80"]})[0], 1, found=False, stamp=""
    )
    newer = node(ground, ledger, sshd("2222"))
    carried = carried_resources(newer.substrate, ledger)
    assert {one.id: one.source for one in carried} == {one.id: one.source for one in parsed(sshd("2222"), kept)}
    assert carried_ports(newer.substrate, ledger) == [25, 2222]


def accept(ledger: Ledger, data: bytes, serial: int = 7) -> None:
    ledger.accept(serial, data, SIGNER.sign(data), SIGNER.public, [], None)


DECLARATION = b"""{"type": "declaration/v1", "node": "a", "serial": 7, "issued_at": "2020-01-01T00:00:00Z",
    "expires_at": "2020-01-01T00:00:01Z", "recovery": [],
    "resources": [{"kind": "reserved", "name": "web", "ports": [80], "needs": ["package:gone"]}]}"""


def test_the_accepted_list_comes_back_past_its_expiry_and_without_what_it_needs(ground: Path, ledger: Ledger) -> None:
    here = node(ground, ledger, sshd("22"))
    assert here.accepted_job() == NOTHING_ACCEPTED
    accept(ledger, DECLARATION)
    job = here.accepted_job()
    assert (job.serial, [one.id for one in job.resources]) == (7, ["reserved:web"])
    outcome = here.apply(job, lambda step: None, lambda: False)
    assert outcome.failed == {"reserved:web": "it needs package:gone, which is not on this machine now"}


def test_the_accepted_list_is_kept_after_joining_anew(ground: Path, ledger: Ledger) -> None:
    here = node(ground, ledger)
    accept(ledger, DECLARATION)
    ledger.begin_anew(keep_serial=False)
    job = here.accepted_job()
    assert (job.serial, [one.id for one in job.resources]) == (0, ["reserved:web"])


def test_an_accepted_list_that_was_changed_on_disk_is_refused(ground: Path, ledger: Ledger) -> None:
    ledger.accept(7, DECLARATION.replace(b"80", b"81"), SIGNER.sign(DECLARATION), SIGNER.public, [], None)
    with pytest.raises(Refused, match="no longer carries its signature"):
        node(ground, ledger).accepted_job()


def test_applying_tries_first_what_of_the_carried_failed(ground: Path, ledger: Ledger) -> None:
    broken = {"kind": "file", "name": f"{ground}/missing/x", "content": ""}
    here = node(ground, ledger, sshd("22"), broken)
    first = here.raise_substrate((), lambda step: None, lambda: False)
    assert list(first.failed) == [f"file:{ground}/missing/x"]
    assert not ledger.raised_once()
    outcome = here.apply(
        Job(1, parsed({"kind": "reserved", "name": "web", "ports": ["80"]})), lambda step: None, lambda: False
    )
    assert outcome.failed == first.failed
    (ground / "missing").mkdir()
    assert here.apply(Job(1, ()), lambda step: None, lambda: False).failed == {}
    assert ledger.raised_once()
    assert (ground / "missing" / "x").exists()
    assert [entry.resource.id for entry in ledger.entries(Origin.ASSIGNED)] == []


def test_what_the_mesh_has_is_nothing_that_a_bundle_gets(ground: Path, ledger: Ledger) -> None:
    accept(ledger, DECLARATION)  # port 80, which nothing holds yet
    before = node(ground, ledger, sshd("80"), {"kind": "reserved", "name": "other", "ports": ["81"]})
    why = "reserved:sshd wants port *:80/tcp, which reserved:web holds as *:80/tcp"
    theirs = last_declared(ledger, ground / "state")
    assert taken(before.substrate.resources, ledger, theirs) == {"reserved:sshd": why}
    outcome = before.raise_substrate(theirs, lambda step: None, lambda: False)
    assert outcome.failed == {"reserved:sshd": why}
    assert [entry.resource.id for entry in ledger.entries(Origin.CARRIED)] == ["reserved:other"]
    # Also what was applied and is no longer declared, as long as it is here.
    ledger.apply(
        Origin.ASSIGNED, parsed({"kind": "reserved", "name": "old", "ports": ["81"]})[0], 1, found=False, stamp=""
    )
    assert set(taken(before.substrate.resources, ledger, theirs)) == {"reserved:sshd", "reserved:other"}


def test_a_declaration_that_no_longer_reads_claims_nothing(ground: Path, ledger: Ledger) -> None:
    ledger.accept(7, DECLARATION, SIGNER.sign(b"other"), SIGNER.public, [], None)
    here = node(ground, ledger, sshd("80"))
    theirs = last_declared(ledger, ground / "state")
    assert taken(here.substrate.resources, ledger, theirs) == {}
    assert here.raise_substrate(theirs, lambda step: None, lambda: False).failed == {}
