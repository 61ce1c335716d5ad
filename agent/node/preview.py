"""What `up` would do, told without doing any of it: no state is made, no lock is taken."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from agent.database import NotMade
from agent.host import sockets
from agent.kinds import KINDS
from agent.kinds.kind import Machine, Verb
from agent.node.identity import Identity
from agent.node.ledger import open_ledger
from agent.node.plans import Asked, plans_for
from agent.node.substrate import port_warnings
from agent.reconcile import Change, Entry, Line, Nothing, Recorded, Surveyor
from agent.resources import Certificate, Directory, Origin, Package, Resource, Secret


@dataclass(frozen=True, slots=True)
class Preview:
    """`lines` in the order of applying, what is removed after them; `warnings` are sentences."""

    lines: tuple[Line, ...]
    warnings: tuple[str, ...]

    @property
    def changes(self) -> bool:
        return any(line.change is not Change.KEEP for line in self.lines)


def preview(asked: Asked) -> Preview:
    """What an `up` with these wishes would do now to what is carried. Refused when the list can't be read."""
    plans = plans_for(asked)
    wanted = plans.substrate.resources
    with _record(asked) as record:
        # Without a key of the node's own nothing was ever stamped with one.
        key = Identity(asked.state).node_key() if plans.known else b""
        machine = Machine(asked.state, key, plans.substrate.read_blob, plans.program.stamp)
        findings = Surveyor(record, machine, KINDS).survey(wanted, Origin.CARRIED)
        lines = [_line(finding.resource, finding.verb, finding.reason, finding.difference) for finding in findings]
        lines += _dropped(record.entries(Origin.CARRIED), wanted, prune=asked.prune)
    return Preview(tuple(lines), tuple(port_warnings(wanted, sockets.given_out())))


def _line(resource: Resource, verb: Verb, reason: str, difference: str) -> Line:
    change = {Verb.KEEP: Change.KEEP, Verb.ADOPT: Change.KEEP, Verb.CREATE: Change.CREATE, Verb.CHANGE: Change.CHANGE}
    return Line(resource.id, change[verb], reason, difference)


def _dropped(held: Sequence[Entry], wanted: Sequence[Resource], *, prune: bool) -> list[Line]:
    ids = {resource.id for resource in wanted}
    dropped = [entry.resource for entry in reversed(held) if entry.resource.id not in ids]
    return [_dropped_line(resource, prune=prune) for resource in dropped]


def _dropped_line(resource: Resource, *, prune: bool) -> Line:
    spec = resource.spec
    stays = isinstance(spec, Package | Secret | Certificate) or (isinstance(spec, Directory) and spec.data)
    if prune:
        what = "; it stays where it is, no longer looked after" if stays else ""
        return Line(resource.id, Change.REMOVE, f"it is no longer carried{what}")
    what = "ends the looking after it, and leaves it where it is" if stays else "takes it away"
    return Line(resource.id, Change.KEEP, f"it is no longer carried; `up --prune` {what}")


@contextmanager
def _record(asked: Asked) -> Iterator[Recorded]:
    try:
        ledger = open_ledger(asked.state, time.time, write=False)
    except NotMade:
        yield Nothing()
        return
    with closing(ledger):
        yield ledger
