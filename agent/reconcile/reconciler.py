"""Making a list true: in its order, one resource after the other, each failure a value and none of them the end.

The rules it upholds. *Intent before touch*: the record commits what is about to happen, and whether the thing was found
or is made, before anything is touched. *A second run does nothing*: what is as wanted is neither touched nor written
down again. *Order of letting go*: a dropped resource whose claim a successor reuses goes just before it; the others go
after an apply without failures, in reverse; only this origin's, and never what the other origin holds as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.errors import AgentError, Unavailable
from agent.kinds.kind import Machine, Plan, Standing, Verb
from agent.reconcile.record import Entry, Phase, Record, other
from agent.reconcile.wanted import Kinds, by_id, filled, kind_of
from agent.resources import Origin, Resource, claims, conflict

log = logging.getLogger(__name__)

NONE_BARRED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step, for a person. `index` and `total` count the wanted list; both are 0 for a removal."""

    id: str
    what: str
    detail: str
    seconds: float
    index: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`changes` counts what was done; `failed` holds id → why; `interrupted` says that it stopped on demand."""

    changes: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Reconciler:
    """What it takes to make lists true on this machine. `clock` is monotonic, in seconds."""

    record: Record
    machine: Machine
    kinds: Kinds
    clock: Callable[[], float]

    def apply(
        self,
        wanted: Sequence[Resource],
        origin: Origin,
        *,
        prune: bool,
        tell: Callable[[Step], None],
        stop: Callable[[], bool] = lambda: False,
        barred: Mapping[str, str] = NONE_BARRED,
    ) -> Outcome:
        """Make the list true, and let go of what this origin held and the list dropped (`prune`: all of it).

        `barred` are ids that are not to be touched, and why: they fail for that.
        """
        failed: dict[str, str] = {}
        changes = 0
        own = by_id(wanted)
        held = {entry.resource.id: entry for entry in self.record.entries(origin)}
        dropped = [entry for id, entry in held.items() if id not in own]
        for index, resource in enumerate(wanted, 1):
            if stop():
                return Outcome(changes, failed, interrupted=True)
            start = self.clock()
            try:
                if resource.id in barred:
                    raise Unavailable(barred[resource.id])
                self._ask_needs(resource, origin, own, failed)
                for old in reversed(dropped):
                    if conflict(resource, old.resource):
                        self._remove(old, data=False, tell=tell)
                        dropped.remove(old)
                        changes += 1
                entry = held.get(resource.id)
                if entry and entry.phase is Phase.LEAVING:
                    # Half let go is finished first: what was found is back then, and is found again.
                    self._remove(entry, data=False, tell=tell)
                    entry = None
                plan = self._make(resource, origin, index, entry, own)
            except Exception as error:
                failed[resource.id] = _in_words(error, resource.id)
                self.record.fail(origin, resource.id, failed[resource.id])
                tell(Step(resource.id, "failed", failed[resource.id], self.clock() - start, index, len(wanted)))
                continue
            changes += plan.verb is not Verb.KEEP
            tell(Step(resource.id, plan.verb.value, plan.reason, self.clock() - start, index, len(wanted)))
        if prune and not failed:
            changes += self._remove_all(dropped, failed, data=False, tell=tell)
        return Outcome(changes, failed)

    def remove_everything(self, tell: Callable[[Step], None]) -> Mapping[str, str]:
        """Take away all that the record holds, last first, data included. What failed stays recorded: id → why."""
        failed: dict[str, str] = {}
        for origin in (Origin.ASSIGNED, Origin.CARRIED):
            self._remove_all(self.record.entries(origin), failed, data=True, tell=tell)
        return failed

    def _make(
        self,
        resource: Resource,
        origin: Origin,
        position: int,
        entry: Entry | None,
        own: Mapping[str, Resource],
    ) -> Plan[Any]:
        kind = kind_of(resource, self.kinds)
        asked = filled(resource, own, self.kinds, self.machine)
        observed = kind.observe(asked, self.machine)
        plan = kind.plan(asked, observed, entry.held if entry else None)
        if plan.verb is Verb.KEEP and entry:
            if (entry.stamp, entry.position, entry.phase) != (asked.stamp, position, Phase.APPLIED):
                self.record.apply(origin, resource, position, found=entry.found, stamp=asked.stamp)
            else:
                self.record.clear(origin, resource.id)
            return plan
        if plan.verb is not Verb.KEEP:
            kind.check(resource.spec, self.machine, list(own.values())[: position - 1])
        known = entry or self.record.entry(other(origin), resource.id)
        standing = kind.standing(observed)
        # One that was intended but never made may be somebody else's by now.
        overtaken = known is not None and not known.stamp and standing is Standing.FOREIGN and bool(plan.actions)
        found = known.found if known else standing.was_here_before_us
        if (found and known is None) or (overtaken and not found):
            kind.preserve(asked, observed, self.machine)
            found = True
        self.record.intend(origin, resource, position, found=found)
        kind.apply(asked, plan, self.machine.mark(asked, found), self.machine)
        self.record.apply(origin, resource, position, found=found, stamp=asked.stamp)
        return plan

    def _ask_needs(
        self, resource: Resource, origin: Origin, own: Mapping[str, Resource], failed: Mapping[str, str]
    ) -> None:
        """A resource whose need failed, or has gone since, is not tried."""
        for need in resource.needs:
            if need in own:
                if need in failed:
                    raise Unavailable(f"it needs {need}, which failed")
                continue
            entry = self.record.entry(other(origin), need)
            if entry is None or entry.phase is not Phase.APPLIED:
                raise Unavailable(f"it needs {need}, which is not on this machine now")
            if need in self.record.failures(other(origin)):
                raise Unavailable(f"it needs {need}, which failed")

    def _remove_all(
        self, entries: Sequence[Entry], failed: dict[str, str], *, data: bool, tell: Callable[[Step], None]
    ) -> int:
        removed = 0
        for entry in reversed(entries):
            try:
                self._ask_content(entry, failed)
                self._remove(entry, data=data, tell=tell)
                removed += 1
            except Exception as error:
                id = entry.resource.id
                failed[id] = _in_words(error, id)
                self.record.fail(entry.origin, id, failed[id])
                tell(Step(id, "failed", f"it could not be removed: {failed[id]}", 0.0))
        return removed

    def _ask_content(self, entry: Entry, failed: Mapping[str, str]) -> None:
        """A directory stays ours while it holds something of ours that could not be removed."""
        folders = claims(entry.resource).folders
        for held in (one for origin in Origin for one in self.record.entries(origin) if one.resource.id in failed):
            if any(folder in path.parents for path in claims(held.resource).paths for folder in folders):
                raise Unavailable(f"it holds {held.resource.id}, which could not be removed")

    def _remove(self, entry: Entry, *, data: bool, tell: Callable[[Step], None]) -> None:
        start, resource = self.clock(), entry.resource
        if self.record.entry(other(entry.origin), resource.id):
            self.record.forget(entry.origin, resource.id)
            tell(Step(resource.id, "kept", f"it is {other(entry.origin).value} as well", self.clock() - start))
            return
        self.record.leave(entry.origin, resource.id)
        removal = kind_of(resource, self.kinds).remove(resource, entry.held, self.machine, data=data)
        self.record.forget(entry.origin, resource.id)
        what = "left" if removal.left else "given back" if entry.found else "removed"
        tell(Step(resource.id, what, removal.left, self.clock() - start))


def _in_words(error: Exception, id: str) -> str:
    """A failure is a value in the report; what nobody foresaw is one too, and is told apart in the log."""
    if isinstance(error, AgentError):
        return str(error)
    log.error("an error of the agent's own at %s", id, exc_info=error)
    return f"an error of the agent's own ({type(error).__name__}: {error}); the agent's log has the details"
