"""How a node stands, for `agent status`: the ledger, a look at each resource, and what the agent last said of its link.

Nothing is touched and no lock is taken, so it can be asked while the agent works.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Refused
from agent.fields import Fields, canonical, parse_json
from agent.host import files
from agent.kinds import KINDS
from agent.kinds.kind import Machine, Verb
from agent.node import folder, own_copy
from agent.node.identity import Identity
from agent.node.ledger import Ledger, open_ledger
from agent.reconcile import Entry, Finding, Phase, Surveyor
from agent.resources import Origin, claims


@dataclass(frozen=True, slots=True)
class Link:
    """The link in a word or two, since when (seconds, epoch; 0 when unknown), and why it isn't up."""

    state: str
    since: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One resource. `state` is `as declared`, `differs`, `missing`, `half-made`, `leaving` or `failed`."""

    id: str
    origin: str
    state: str
    why: str
    found: bool
    ports: tuple[str, ...]
    since: float


@dataclass(frozen=True, slots=True)
class Condition:
    """`agent` is the running agent's pid, None when none runs; `serial` 0 when nothing was ever accepted."""

    name: str
    role: str
    agent: int | None
    link: Link
    serial: int
    accepted: float
    lines: tuple[Line, ...]


def look(state: Path) -> Condition:
    """How the node in this state folder stands. Refused when there is none."""
    identity = Identity(state)
    myself = identity.self()
    if myself is None:
        raise Refused(f"there is no node at {state} yet; `agent up` makes one (see --state)")
    ledger = open_ledger(state, time.time, write=False)
    settled = own_copy.settled(state)
    machine = Machine(state, identity.node_key(), lambda name: iter(()), settled.stamp if settled else "")
    surveyor = Surveyor(ledger, machine, KINDS)
    running = folder.holder(state)
    accepted = ledger.accepted()
    return Condition(
        name=myself.name,
        role=myself.role.value,
        agent=running,
        link=read_link(state) if running else Link("down", why="the agent is not running"),
        serial=accepted.serial if accepted else 0,
        accepted=accepted.since if accepted else 0.0,
        lines=tuple(line for origin in Origin for line in _lines(origin, ledger, surveyor)),
    )


def write_link(state: Path, link: Link) -> None:
    """Leave word of the link for `agent status`."""
    data = canonical({"state": link.state, "since": link.since, "why": link.why}).encode("utf-8")
    files.write(state / "run" / "link.json", data, mode=0o600, uid=os.geteuid(), gid=os.getegid())


def read_link(state: Path) -> Link:
    """What the agent last said of its link."""
    data = files.read(state / "run" / "link.json", uid=os.geteuid())
    if data is None:
        return Link("not up yet")
    fields = Fields(parse_json(data), "run/link.json")
    since = fields.raw("since")
    return Link(fields.text("state"), float(since) if isinstance(since, (int, float)) else 0.0, fields.text("why", ""))


def _lines(origin: Origin, ledger: Ledger, surveyor: Surveyor) -> list[Line]:
    entries, failures = ledger.entries(origin), dict(ledger.failures(origin))
    findings = surveyor.survey([entry.resource for entry in entries], origin)
    lines = [
        _line(entry, finding, failures.pop(entry.resource.id, None))
        for entry, finding in zip(entries, findings, strict=True)
    ]
    return lines + [Line(id, origin.value, "failed", why, False, (), 0.0) for id, why in failures.items()]


def _line(entry: Entry, finding: Finding, failure: str | None) -> Line:
    state, why = _state(entry, finding, failure)
    ports = tuple(str(port) for port in claims(entry.resource).ports)
    return Line(entry.resource.id, entry.origin.value, state, why, entry.found, ports, entry.since)


def _state(entry: Entry, finding: Finding, failure: str | None) -> tuple[str, str]:
    if failure is not None:
        return "failed", failure
    if entry.phase is not Phase.APPLIED:
        return entry.phase.value, ""
    if finding.verb in (Verb.KEEP, Verb.ADOPT):
        return "as declared", ""
    return ("missing" if finding.verb is Verb.CREATE else "differs"), finding.reason
