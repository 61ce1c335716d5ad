"""Services without systemd: detached processes that outlive the agent and that it finds again.

- What runs as declared is kept, with its pids, whatever became of the agent since; it is never started twice.
- One that ends, or isn't ready in time, is a failure with the last line of its log; all of it is ended, so that
  the next try begins with nothing.
- Late values are in the service's own environment and arguments only, in no message, log or record.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.errors import Unavailable
from agent.host import files, processes
from agent.host.commands import CommandFailed
from agent.host.processes import Process
from agent.kinds import readiness, watches
from agent.kinds.hiding import hiding
from agent.kinds.kind import Held, Machine, Plan, Verb, Wanted
from agent.kinds.readiness import Ended, LogIn, NotReady
from agent.kinds.service import last_words, logs, probing, record, requirements, running, starting, stopping
from agent.kinds.service.action import Action, plan_for_running
from agent.kinds.service.record import Identity, Start
from agent.resources import Resource, specs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Observed:
    """What runs of it.

    `stamp` is what it was started with; "" when that can't be told, or isn't what is wanted. `changed` are the
    watched files that are no longer as they were then. `ready`: it was seen ready since.
    """

    main: Process | None
    members: frozenset[Process]
    stamp: str
    changed: tuple[str, ...]
    ready: bool


def plan(wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
    """Keep what runs as wanted, start what doesn't run, replace the rest."""
    if not observed.members:
        return Plan(Verb.CREATE, "it is not running", (Action.START,))
    if observed.main is None:
        return Plan(Verb.CHANGE, "its main process has ended and left others behind", (Action.START,))
    if observed.stamp != wanted.stamp:
        return Plan(Verb.CHANGE, "it runs as it was declared before", (Action.START,))
    if observed.changed:
        return Plan(Verb.CHANGE, f"{observed.changed[0]} has changed since its start", (Action.START,))
    return plan_for_running(observed.ready, held)


@dataclass(frozen=True, slots=True)
class Detached:
    """How it is raised without systemd; the fields are the kind's."""

    log_in: LogIn
    settling: float

    def check(self, spec: specs.Service, machine: Machine, earlier: Sequence[Resource]) -> None:
        """Whether its user and program are here, or may come with a package, and its ports are free."""
        requirements.check(spec, machine, earlier)
        ours = {*running.of_state(machine.state), *running.look(_identity(spec, machine)).members, processes.current()}
        for holder in requirements.holders(spec.ports):
            if not requirements.is_held_by(holder, {process.pid for process in ours}):
                raise requirements.port_taken(spec, holder)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        """Which processes of it live, and what they were started with."""
        spec = _spec(wanted.resource)
        found = running.look(_identity(spec, machine))
        watched = watches.digests(spec.watches, machine)
        main, start = found.main, found.start
        if main is None:
            return Observed(None, found.members, "", (), ready=False)
        if start is None:
            known = running.was_started_with(main, wanted.stamp)
            changed = () if running.has_seen(main, watched) else tuple(watched)
            return Observed(main, found.members, wanted.stamp if known else "", changed, ready=False)
        changed = tuple(path for path, digest in watched.items() if start.watched.get(path) != digest)
        return Observed(main, found.members, start.stamp, changed, start.ready)

    def apply(self, wanted: Wanted, plan: Plan[Action], machine: Machine) -> None:
        """Have it running and ready. Unavailable, with nothing of it left running, when that can't be."""
        spec = _spec(wanted.resource)
        with hiding(wanted.late):
            if Action.AWAIT in plan.actions and self._await_earlier(spec, wanted, machine):
                return
            if plan.actions:
                self._replace(spec, wanted, machine)

    def remove(self, resource: Resource, machine: Machine) -> None:
        """End all of it, and take its record and log away."""
        spec = _spec(resource)
        identity = _identity(spec, machine)
        stop(spec, identity)
        for path in (*logs.files_of(identity.log), identity.record):
            files.remove(path, uid=os.geteuid())

    def _await_earlier(self, spec: specs.Service, wanted: Wanted, machine: Machine) -> bool:
        """Whether what runs became ready. A lost record is made anew from what runs."""
        identity = _identity(spec, machine)
        found = running.look(identity)
        if found.main is None:
            return False
        start = found.start
        if start is None:
            watched = watches.digests(spec.watches, machine)
            size = logs.size(identity.log)
            start = Start(found.main, record.boot_id(), wanted.stamp, watched, size, touched="")
            record.write(identity.record, start)
        try:
            self._wait(spec, wanted.late, start)
        except (Ended, NotReady) as error:
            log.info("The service %s, which ran already, is started anew: %s", spec.name, error)
            return False
        record.write(identity.record, replace(start, ready=True))
        return True

    def _replace(self, spec: specs.Service, wanted: Wanted, machine: Machine) -> None:
        identity = _identity(spec, machine)
        stop(spec, identity)
        for holder in requirements.holders(spec.ports):
            raise requirements.port_taken(spec, holder)
        try:
            watched = watches.digests(spec.watches, machine)
            start = starting.start(spec, wanted.stamp, watched, wanted.late, identity)
        except CommandFailed as error:
            # The command's words may hold what was filled in, so its error isn't shown with this one.
            raise Unavailable(f"The service {spec.name} {error.reason}") from None
        try:
            self._wait(spec, wanted.late, start)
        except Ended as error:
            left = running.look(identity).members
            stop(spec, identity)
            words = last_words.ended(spec, left_others=bool(left))
            raise Unavailable(f"{words} {_last_words(identity, start)}") from error
        except NotReady as error:
            stop(spec, identity)
            words = last_words.not_ready(spec, error)
            raise Unavailable(f"{words} {_last_words(identity, start)}") from error
        record.write(identity.record, replace(start, ready=True))

    def _wait(self, spec: specs.Service, late: Mapping[str, str], start: Start) -> None:
        def is_alive() -> bool:
            return processes.is_alive(start.process)

        if spec.ready is None:
            readiness.settle(self.settling, is_alive)
            return
        probe = probing.probe(spec.ready.when, spec, late, start.touched, self.log_in)
        readiness.wait(probe, spec.ready.timeout, is_alive)


def stop(spec: specs.Service, identity: Identity) -> None:
    """End every process of it that runs detached."""
    stopping.stop(identity, running.look(identity), signal.Signals[spec.stop_signal], spec.stop_timeout)


def _spec(resource: Resource) -> specs.Service:
    assert isinstance(resource.spec, specs.Service)
    return resource.spec


def _identity(spec: specs.Service, machine: Machine) -> Identity:
    return Identity(machine.state, spec.name)


def _last_words(identity: Identity, start: Start) -> str:
    return last_words.quote(last_words.last_of(logs.tail(identity.log, start.log_size)), str(identity.log))
