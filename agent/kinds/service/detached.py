"""Services without systemd: detached processes that outlive the agent and that it finds again.

- What runs as declared is kept, with its pids, whatever became of the agent since; it is never started twice.
- One that ends, or isn't ready in time, is a failure with the last line of its log; all of it is ended, so that
  the next try begins with nothing.
- Late values are in the service's own environment and arguments only, in no message, log or record.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from agent.errors import Refused, Unavailable
from agent.host import accounts, commands, files, processes
from agent.host.commands import CommandFailed
from agent.host.failures import in_words
from agent.host.processes import Process
from agent.host.sockets import Holder
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.service import readiness, record, running, starting, stopping
from agent.kinds.service.readiness import Ended, LogIn, NotReady
from agent.kinds.service.record import Identity, Start
from agent.resources import Resource, specs

log = logging.getLogger(__name__)

_TAIL = 8192
_LINE_LENGTH = 300


class Action(Enum):
    """START ends what is left first. AWAIT waits for what an earlier, interrupted run of the agent started."""

    START = "start"
    AWAIT = "await"


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


@dataclass(frozen=True, slots=True)
class Service:
    """The kind, and how it logs in where that is what readiness means.

    `settling`: one that doesn't say when it is ready must live so long (seconds); what can't work ends sooner.
    """

    log_in: LogIn = readiness.log_in
    settling: float = 1.0

    def check(self, spec: specs.Service, machine: Machine, earlier: Sequence[Resource]) -> None:
        """Whether its user and program are here, or may come with a package, and its ports are free."""
        brings = any(isinstance(resource.spec, specs.Package) for resource in earlier)
        if not brings:
            uid = accounts.account(spec.user).uid
            if os.geteuid() not in (0, uid):
                raise Refused(f"Starting a service as the user {spec.user} needs root; run the agent as root.")
            _require_program(spec, machine, earlier)
        holders = starting.holders(spec.ports)
        ours = {*running.of_state(machine.state), *running.look(_identity(spec, machine)).members}
        for holder in holders:
            if not starting.is_held_by(holder, {*ours, processes.current()}):
                raise _port_taken(spec, holder)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        """Which processes of it live, and what they were started with."""
        spec = _spec(wanted.resource)
        found = running.look(_identity(spec, machine))
        watched = record.digests(spec.watches)
        main, start = found.main, found.start
        if main is None:
            return Observed(None, found.members, "", (), ready=False)
        if start is None:
            known = running.was_started_with(main, wanted.stamp)
            changed = () if running.has_seen(main, watched) else tuple(watched)
            return Observed(main, found.members, wanted.stamp if known else "", changed, ready=False)
        changed = tuple(path for path, digest in watched.items() if start.watched.get(path) != digest)
        return Observed(main, found.members, start.stamp, changed, start.ready)

    def standing(self, observed: Observed) -> Standing:
        """What runs under our mark is ours."""
        return Standing.MADE if observed.members else Standing.ABSENT

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        """Keep what runs as wanted, start what doesn't run, replace the rest."""
        if not observed.members:
            return Plan(Verb.CREATE, "it is not running", (Action.START,))
        if observed.main is None:
            return Plan(Verb.CHANGE, "its main process has ended and left others behind", (Action.START,))
        if observed.stamp != wanted.stamp:
            return Plan(Verb.CHANGE, "it runs as it was declared before", (Action.START,))
        if observed.changed:
            return Plan(Verb.CHANGE, f"{observed.changed[0]} has changed since its start", (Action.START,))
        if not observed.ready:
            return Plan(Verb.ADOPT, "it runs already, but was not seen ready", (Action.AWAIT,))
        if held is None:
            return Plan(Verb.ADOPT, "it runs already")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        """A service is never found, only made."""

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        """Have it running and ready. Unavailable, with nothing of it left running, when that can't be."""
        spec = _spec(wanted.resource)
        identity = _identity(spec, machine)
        with _hiding(wanted.late):
            if Action.AWAIT in plan.actions and self._await_earlier(spec, wanted, identity):
                return
            if plan.actions:
                self._replace(spec, wanted, identity)

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        """End all of it, and take its record and log away."""
        spec = _spec(resource)
        identity = _identity(spec, machine)
        _stop(spec, identity)
        for path in (identity.log, identity.record):
            files.remove(path, uid=os.geteuid())
        return Removal()

    def value(self, spec: specs.Service, machine: Machine) -> str | None:
        """Nothing refers to a service's value."""
        return None

    def _await_earlier(self, spec: specs.Service, wanted: Wanted, identity: Identity) -> bool:
        """Whether what runs became ready. A lost record is made anew from what runs."""
        found = running.look(identity)
        if found.main is None:
            return False
        start = found.start
        if start is None:
            watched = record.digests(spec.watches)
            size = starting.size_of_log(identity)
            start = Start(found.main, record.boot_id(), wanted.stamp, watched, size, touched="")
            record.write(identity.record, start)
        try:
            self._wait(spec, wanted.late, start)
        except (Ended, NotReady) as error:
            log.info("The service %s, which ran already, is started anew: %s", spec.name, error)
            return False
        record.write(identity.record, replace(start, ready=True))
        return True

    def _replace(self, spec: specs.Service, wanted: Wanted, identity: Identity) -> None:
        _stop(spec, identity)
        for holder in starting.holders(spec.ports):
            raise _port_taken(spec, holder)
        try:
            start = starting.start(spec, wanted.stamp, wanted.late, identity)
        except CommandFailed as error:
            # The command's words may hold what was filled in, so its error isn't shown with this one.
            raise Unavailable(f"The service {spec.name} {error.reason}") from None
        try:
            self._wait(spec, wanted.late, start)
        except Ended as error:
            left = running.look(identity).members
            _stop(spec, identity)
            raise Unavailable(_epitaph(spec, identity, start, bool(left))) from error
        except NotReady as error:
            _stop(spec, identity)
            raise Unavailable(_complaint(spec, identity, start, error)) from error
        record.write(identity.record, replace(start, ready=True))

    def _wait(self, spec: specs.Service, late: Mapping[str, str], start: Start) -> None:
        def is_alive() -> bool:
            return processes.is_alive(start.process)

        if spec.ready is None:
            readiness.settle(self.settling, is_alive)
            return
        probe = readiness.probe(spec.ready.when, spec, late, start.touched, self.log_in)
        readiness.wait(probe, spec.ready.timeout, is_alive)


def last_line(path: Path, begin: int) -> str:
    """The last line with something in it, from byte `begin` of a log on; "" when there is none."""
    with in_words("Reading the log", path):
        try:
            with path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(begin, end - _TAIL) if begin <= end else max(0, end - _TAIL))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in text.splitlines()]
    return next((line[:_LINE_LENGTH] for line in reversed(lines) if line), "")


def _spec(resource: Resource) -> specs.Service:
    assert isinstance(resource.spec, specs.Service)
    return resource.spec


def _identity(spec: specs.Service, machine: Machine) -> Identity:
    return Identity(machine.state, spec.name)


def _require_program(spec: specs.Service, machine: Machine, earlier: Sequence[Resource]) -> None:
    if spec.command[0].references:
        return
    program = spec.command[0].render(str)
    if "/" in program:
        path = Path(program)
        # The agent's own copy and what earlier resources put there come in time.
        coming = {machine.state / "agent", *(one.spec.path for one in earlier if isinstance(one.spec, specs.File))}
        if path not in coming and not os.access(path, os.X_OK):
            raise Unavailable(f"The service {spec.name} can't be started: there is no program {program}; install it.")
        return
    places = next((value for name, value in spec.environment if name == "PATH"), None)
    if places is not None and places.references:
        return
    search = commands.PATH if places is None else places.render(str)
    if shutil.which(program, path=search) is None:
        raise Unavailable(
            f"The service {spec.name} can't be started: {program} is not on this machine "
            f"(looked in {search}); install it."
        )


def _port_taken(spec: specs.Service, holder: Holder) -> Unavailable:
    return Unavailable(
        f"The service {spec.name} needs port {holder.wanted}, which is held by {holder}; stop that program."
    )


def _stop(spec: specs.Service, identity: Identity) -> None:
    stopping.stop(identity, running.look(identity), signal.Signals[spec.stop_signal], spec.stop_timeout)


def _epitaph(spec: specs.Service, identity: Identity, start: Start, left_others: bool) -> str:
    when = "before it was ready" if spec.ready else "at once"
    if left_others:
        return (
            f"The service {spec.name} ended {when} and left others running, which were ended; have its command "
            f"stay in the foreground. {_last_words(identity, start)}"
        )
    return f"The service {spec.name} ended {when}. {_last_words(identity, start)}"


def _complaint(spec: specs.Service, identity: Identity, start: Start, error: NotReady) -> str:
    seconds = spec.ready.timeout if spec.ready else 0
    return (
        f"The service {spec.name} was not ready within {seconds} seconds and was stopped: {error}. "
        f"{_last_words(identity, start)}"
    )


def _last_words(identity: Identity, start: Start) -> str:
    line = last_line(identity.log, start.log_size)
    return f"The last line of {identity.log}: {line}" if line else f"It wrote nothing to {identity.log}."


@contextmanager
def _hiding(late: Mapping[str, str]) -> Iterator[None]:
    """Take late values out of what a failure says: a program may have written them to its log."""
    try:
        yield
    except Unavailable as error:
        shown = str(error)
        for name, value in late.items():
            if value:
                shown = shown.replace(value, f"${{{name}}}")
        if shown == str(error):
            raise
        raise Unavailable(shown) from None
