"""Services as units of systemd, where that runs the machine.

- A unit of ours says so in its first line; one of the same name that doesn't is somebody else's and is never touched.
- What runs as declared is kept, with its pids; a unit's file that differs is put right without ending what runs.
- One that ends, or isn't ready in time, is a failure with the last line of its journal; it is stopped, so that the next
  try begins with nothing.
- What runs detached, from a time without systemd, is ended and made a unit.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.errors import Refused, Unavailable
from agent.host import files, processes, systemd, unitfile
from agent.host.commands import CommandFailed
from agent.host.failures import in_words
from agent.host.processes import Process
from agent.kinds import readiness, watches
from agent.kinds.hiding import hiding
from agent.kinds.kind import Held, Machine, Plan, Verb, Wanted
from agent.kinds.readiness import Ended, LogIn, NotReady
from agent.kinds.service import (
    detached,
    last_words,
    probing,
    requirements,
    running,
    starting,
    unit_owner,
    unit_record,
    unit_text,
)
from agent.kinds.service.action import Action, plan_for_running
from agent.kinds.service.record import Identity
from agent.kinds.service.unit_record import Place, Start
from agent.resources import Resource, specs

log = logging.getLogger(__name__)

_RUNNING = frozenset({"active", "reloading"})
# Every user of the machine may read a unit, and must not write it.
_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Observed:
    """The unit and what runs of it.

    `main`, `stamp`, `changed` and `ready` are as of a detached service. `recorded`: this start is one of ours.
    `difference` says how the unit itself isn't as it should be, as the end of a sentence; "" when it is. `leftover`:
    something of it runs detached.
    """

    main: Process | None
    stamp: str
    changed: tuple[str, ...]
    ready: bool
    recorded: bool
    difference: str
    leftover: bool


def plan(wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
    """Keep what runs as wanted, start what doesn't run, replace the rest."""
    anew = (Action.PLACE, Action.START)
    if observed.leftover:
        return Plan(Verb.CHANGE, "it runs detached, from before systemd", anew)
    if observed.main is None:
        return Plan(Verb.CREATE, "it is not running", anew)
    if observed.stamp != wanted.stamp:
        return Plan(Verb.CHANGE, "it runs as it was declared before", anew)
    if observed.changed:
        return Plan(Verb.CHANGE, f"{observed.changed[0]} has changed since its start", anew)
    if observed.difference:
        # What somebody else's file may have started is started anew; else the file alone is put right.
        rest = () if observed.ready else (Action.AWAIT,)
        return Plan(Verb.CHANGE, observed.difference, (Action.PLACE, *rest) if observed.recorded else anew)
    return plan_for_running(observed.ready, held)


@dataclass(frozen=True, slots=True)
class AsUnit:
    """How it is raised under systemd; the fields are the kind's."""

    log_in: LogIn
    settling: float

    def check(self, spec: specs.Service, machine: Machine, earlier: Sequence[Resource]) -> None:
        """As for a detached one; also whether systemd can run it, and nobody else has a unit of its name."""
        requirements.check(spec, machine, earlier)
        program = spec.command[0]
        if not program.references and not unitfile.can_execute(program.render(str)):
            raise Refused(
                f"The service {spec.name} can't be a unit: systemd takes no program whose path holds quotes, "
                "backslashes or control characters; give it another name."
            )
        if not str(machine.state).isprintable():
            raise Refused("A unit can't point into a state folder whose path can't be printed; choose another one.")
        place = _place(spec, machine)
        unit_owner.require_ours(place, systemd.show(place.unit))
        ours = {one.pid for one in (*running.of_state(machine.state), processes.current())}
        for holder in requirements.holders(spec.ports):
            if not (requirements.is_held_by(holder, ours) or unit_owner.is_held_by_one(holder, machine)):
                raise requirements.port_taken(spec, holder)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        """What systemd says of it, and whether its files are as they should be. Unavailable for somebody else's."""
        spec = _spec(wanted.resource)
        place = _place(spec, machine)
        found = systemd.show(place.unit)
        content = unit_owner.require_ours(place, found)
        start = _recorded(place, found)
        main = found.main if found.active in _RUNNING else None
        watched = watches.digests(spec.watches, machine)
        leftover = bool(running.look(Identity(machine.state, spec.name)).members)
        difference = _difference(wanted, machine, place, found, content)
        if main is None:
            return Observed(None, "", (), False, False, difference, leftover)
        if start is None:
            stamp = wanted.stamp if running.was_started_with(main, wanted.stamp) else ""
            changed = () if running.has_seen(main, watched) else tuple(watched)
            return Observed(main, stamp, changed, False, False, difference, leftover)
        changed = tuple(path for path, digest in watched.items() if start.watched.get(path) != digest)
        return Observed(main, start.stamp, changed, start.ready, True, difference, leftover)

    def apply(self, wanted: Wanted, plan: Plan[Action], machine: Machine) -> None:
        """Have it as a unit, running and ready. Unavailable, with nothing of it left running, when that can't be."""
        spec = _spec(wanted.resource)
        place = _place(spec, machine)
        with hiding(wanted.late):
            if Action.PLACE in plan.actions:
                self._put(wanted, machine, place)
            if Action.AWAIT in plan.actions and not self._await_earlier(spec, wanted, machine, place):
                self._put(wanted, machine, place)
                self._replace(spec, wanted, machine, place)
            elif Action.START in plan.actions:
                self._replace(spec, wanted, machine, place)

    def _put(self, wanted: Wanted, machine: Machine, place: Place) -> None:
        """Write what differs, and have systemd read its files again only then."""
        spec, found = _spec(wanted.resource), systemd.show(place.unit)
        before = unit_owner.require_ours(place, found)
        unit_record.make_folder(place)
        watched = watches.digests(spec.watches, machine)
        environment = unit_text.environment(spec, wanted.stamp, watched, wanted.late).encode()
        if files.read(place.environment, uid=os.geteuid()) != environment:
            files.write(place.environment, environment, mode=0o600, uid=os.geteuid(), gid=os.getegid())
        text = _text(wanted, machine, place).encode()
        if before != text:
            files.write(place.file, text, mode=_MODE, uid=os.geteuid(), gid=os.getegid())
        enabled = found.enabled and before is not None
        if not enabled:
            systemd.enable(place.unit)
        if before != text or not enabled or found.stale:
            systemd.reload()

    def _await_earlier(self, spec: specs.Service, wanted: Wanted, machine: Machine, place: Place) -> bool:
        """Whether what runs became ready. A start that wasn't ours (a boot's, systemd's own) is recorded."""
        found = systemd.show(place.unit)
        if found.main is None or found.active not in _RUNNING:
            return False
        start = _recorded(place, found)
        if start is None:
            start = Start(found.invocation, wanted.stamp, watches.digests(spec.watches, machine), touched="")
            unit_record.make_folder(place)
            unit_record.write(place.record, start)
        try:
            self._wait(spec, wanted.late, start, found.main)
        except (Ended, NotReady) as error:
            log.info("The service %s, which ran already, is started anew: %s", spec.name, error)
            return False
        unit_record.write(place.record, replace(start, ready=True))
        return True

    def _replace(self, spec: specs.Service, wanted: Wanted, machine: Machine, place: Place) -> None:
        identity = Identity(machine.state, spec.name)
        if running.look(identity).members:
            detached.stop(spec, identity)
        files.remove(identity.record, uid=os.geteuid())
        systemd.stop(place.unit, spec.stop_timeout)
        for holder in requirements.holders(spec.ports):
            raise requirements.port_taken(spec, holder)
        watched = watches.digests(spec.watches, machine)
        begun, touched = time.monotonic(), starting.touched_before(spec)
        try:
            systemd.start(place.unit)
        except CommandFailed as error:
            words = _why_not_started(spec, place, begun, error)
            systemd.stop(place.unit, spec.stop_timeout)
            raise Unavailable(words) from None
        found = systemd.show(place.unit)
        start = Start(found.invocation, wanted.stamp, watched, touched)
        unit_record.write(place.record, start)
        try:
            self._wait(spec, wanted.late, start, found.main)
        except (Ended, NotReady) as error:
            ended = last_words.ended(spec, left_others=False)
            words = last_words.not_ready(spec, error) if isinstance(error, NotReady) else ended
            quoted = _last_words(place, begun)
            systemd.stop(place.unit, spec.stop_timeout)
            raise Unavailable(f"{words} {quoted}") from error
        unit_record.write(place.record, replace(start, ready=True))

    def _wait(self, spec: specs.Service, late: Mapping[str, str], start: Start, main: Process | None) -> None:
        def is_alive() -> bool:
            return main is not None and processes.is_alive(main)

        if spec.ready is None:
            readiness.settle(self.settling, is_alive)
            return
        probe = probing.probe(spec.ready.when, spec, late, start.touched, self.log_in)
        readiness.wait(probe, spec.ready.timeout, is_alive)


def remove(resource: Resource, machine: Machine) -> str:
    """Stop it and take its unit away; what was left, as a sentence, when it is not ours. Works without systemd too."""
    spec = _spec(resource)
    place = _place(spec, machine)
    content = unit_owner.read(place)
    theirs = "" if content is None else unit_owner.whose(place, content)
    in_charge = systemd.in_charge()
    if theirs:
        return theirs if in_charge else ""
    if in_charge:
        # One whose file is gone may still run; one that lies elsewhere is not ours.
        if systemd.show(place.unit).fragment in (None, place.file):
            systemd.stop(place.unit, spec.stop_timeout)
        if content is not None:
            systemd.disable(place.unit)
    if content is not None:
        files.remove(place.file, uid=os.geteuid())
        _remove_link(place)
    for path in (place.environment, place.record):
        files.remove(path, uid=os.geteuid())
    if in_charge and content is not None:
        systemd.reload()
        systemd.forget(place.unit)
    return ""


def _difference(wanted: Wanted, machine: Machine, place: Place, found: systemd.Unit, content: bytes | None) -> str:
    if content is None:
        return "its unit's file is gone"
    try:
        if content != _text(wanted, machine, place).encode():
            return "its unit's file is not as it should be"
    except KeyError:  # A value that isn't made yet: what is there is of an older declaration, by its stamp.
        return ""
    if not place.environment.exists():
        return "the file of its environment is gone"
    if not found.enabled:
        return "it would not be started at boot"
    return "systemd has not read its files since they changed" if found.stale else ""


def _text(wanted: Wanted, machine: Machine, place: Place) -> str:
    return unit_text.unit(_spec(wanted.resource), machine.mark(wanted, found=False), place, wanted.late)


def _recorded(place: Place, found: systemd.Unit) -> Start | None:
    start = unit_record.read(place.record)
    return start if start and start.invocation == found.invocation else None


def _remove_link(place: Place) -> None:
    link = systemd.FOLDER / "multi-user.target.wants" / place.unit
    with in_words("Removing", link):
        link.unlink(missing_ok=True)


def _why_not_started(spec: specs.Service, place: Place, begun: float, error: CommandFailed) -> str:
    said = last_words.last_of(systemd.said_since(begun, place.name))
    if said:  # It was so quick that systemd counts it as never started.
        return f"{last_words.ended(spec, left_others=False)} {last_words.quote(said, _journal_of(place))}"
    complaints = systemd.complaints_since(begun, place.unit)
    steps = [line for line in complaints if line.startswith("Failed at step")]
    why = last_words.last_of(steps) or last_words.last_of(complaints) or error.reason
    return f"The service {spec.name} can't start as {spec.user} in {spec.directory}: {why.rstrip('.')}."


def _last_words(place: Place, begun: float) -> str:
    return last_words.quote(last_words.last_of(systemd.said_since(begun, place.name)), _journal_of(place))


def _journal_of(place: Place) -> str:
    return f"the journal of {place.unit}"


def _spec(resource: Resource) -> specs.Service:
    assert isinstance(resource.spec, specs.Service)
    return resource.spec


def _place(spec: specs.Service, machine: Machine) -> Place:
    return Place(machine.state, spec.name)
