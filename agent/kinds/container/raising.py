"""Having a container run: made, started, waited for.

- What is needed is had before anything of the old one is touched: its image, its mounts, its networks and volumes.
- One that ends, or isn't ready in time, is stopped, so that no restart revives it; the next try makes it anew.
- A start that the engine refuses is told in the engine's words; who holds its port stands before them.
"""

from __future__ import annotations

import logging
import os
import resource as limits
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.errors import Unavailable
from agent.host import processes
from agent.host.sockets import Holder
from agent.kinds import loaded, readiness, watches
from agent.kinds.container import belongings, making, note, running
from agent.kinds.container.note import Note
from agent.kinds.container.state import State
from agent.kinds.engine import Engine, EngineFailed, complaint
from agent.kinds.kind import Machine, Mark, Standing
from agent.kinds.readiness import Ended, LogIn, NotReady
from agent.resources import Bind, EngineName, FileReady, Resource, claims, specs

log = logging.getLogger(__name__)

_COMMAND_SECONDS = 30.0
_LEAST_SECONDS = 5.0
# docker's proxy accepts for a container that doesn't, and closes then.
_LINGER_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Raising:
    """One container to have at one engine. `log_in` and `settling` are the kind's."""

    engine: Engine
    spec: specs.Container
    late: Mapping[str, str]
    machine: Machine
    log_in: LogIn
    settling: float

    def make(self, mark: Mark, elsewhere: Sequence[tuple[Engine, State]]) -> None:
        """Make it anew; what there is of it goes first, also `elsewhere`."""
        engine, spec, machine = self.engine, self.spec, self.machine
        require_sources(spec, machine, ())
        image = loaded.resolve(engine, machine, spec.image)
        belongings.make(engine, spec, machine)
        for other, there in elsewhere:
            running.discard(other, there)
        found, noted = running.find(engine, spec.name), note.read(machine, spec.name)
        if found and running.standing(found, spec.name, machine) is not Standing.MADE:
            raise running.foreign(engine.name, found)
        earlier = noted.anonymous if noted and noted.engine is engine.name else {}
        anonymous = {**earlier, **(found.anonymous if found else {})}
        note.write(machine, spec.name, Note(engine.name, "", anonymous))
        if found:
            running.discard(engine, found)
        touched = _touched(spec)
        self._create(
            making.arguments(
                spec,
                image=image,
                late=self.late,
                mark=mark,
                watched=making.watched(spec, machine),
                kept={target: name for target, name in anonymous.items() if engine.inspect("volume", name)},
                processes=_processes(engine.name),
            ),
            was_noted=noted is not None,
        )
        self._wait_until_ready(self._start(), touched)
        loaded.let_go(engine, machine)

    def start_again(self) -> bool:
        """Whether one that had stopped is up again; False when the engine can't start it any more."""
        touched = _touched(self.spec)
        try:
            found = running.start(self.engine, self.spec.name)
        except EngineFailed as error:
            log.info("The container %s is made anew: %s", self.spec.name, error)
            return False
        self._wait_until_ready(found, touched)
        return True

    def await_earlier(self) -> bool:
        """Whether what runs became ready."""
        found = running.find(self.engine, self.spec.name)
        if found is None:
            return False
        try:
            self._wait(found, touched="")
        except (Ended, NotReady):
            log.info("The container %s, which ran already but was not ready, is made anew", self.spec.name)
            return False
        self._note_ready(found)
        return True

    def _create(self, words: Sequence[str], *, was_noted: bool) -> None:
        """Make it. A name that is held by nothing the engine lists is freed first, if a try of ours holds it."""
        engine, name = self.engine, self.spec.name
        secrets = making.secrets(self.spec, self.late)
        doing = f"make the container {name}"
        try:
            engine.run(words, doing, secrets=secrets)
        except EngineFailed as error:
            holder = running.unlisted_holder(error)
            if holder is None:
                raise
            if not was_noted:
                remedy = f"{engine.name.value} rm --force {holder[:12]}"
                raise Unavailable(
                    f"The container {name} can't be made: {engine.name.value} holds that name for one that it doesn't "
                    f"list and that may be somebody else's; see to it with `{remedy}`."
                ) from error
            engine.run(["rm", "--force", holder], f"clear what is left of the container {name}")
            engine.run(words, doing, secrets=secrets)

    def _start(self) -> State:
        try:
            return running.start(self.engine, self.spec.name)
        except EngineFailed as error:
            taken = [f"{port_taken(self.spec, holder)} " for holder in running.port_holders(self.spec)[:1]]
            raise Unavailable(f"{''.join(taken)}{error}") from error

    def _wait_until_ready(self, found: State, touched: str) -> None:
        """Return when what was started is ready; Unavailable, with it stopped, when it isn't in time."""
        name, ready = self.spec.name, self.spec.ready
        try:
            self._wait(found, touched)
        except Ended as error:
            when = "before it was ready" if ready else "at once"
            words = f"The container {name} ended {when}. {self._last_words(found)}"
            running.stop(self.engine, found)
            raise Unavailable(words) from error
        except NotReady as error:
            seconds = ready.timeout if ready else 0
            words = f"The container {name} was not ready within {seconds} seconds and was stopped: {error}. "
            words += self._last_words(found)
            running.stop(self.engine, found)
            raise Unavailable(words) from error
        self._note_ready(found)

    def _wait(self, found: State, touched: str) -> None:
        first = running.process(found)

        def is_alive() -> bool:
            return first is not None and processes.is_alive(first)

        if self.spec.ready is None:
            readiness.settle(self.settling, is_alive)
            return

        def run(when: specs.CommandReady, left: float) -> str | None:
            return self._run_inside(found, when, left)

        probe = readiness.probe(self.spec.ready.when, run, self.late, touched, self.log_in, _LINGER_SECONDS)
        readiness.wait(probe, self.spec.ready.timeout, is_alive)

    def _run_inside(self, found: State, when: specs.CommandReady, left: float) -> str | None:
        words = ["exec", found.id, *(word.render(self.late.__getitem__) for word in when.command)]
        command = shlex.join(word.encode() for word in when.command)
        # An engine takes its own time to get inside.
        seconds = min(max(left, _LEAST_SECONDS), _COMMAND_SECONDS)
        try:
            answer = self.engine.run(words, f"run `{command}` in it", seconds=seconds, check=False)
        except EngineFailed as error:
            return str(error)
        return None if answer.code == 0 else f"`{command}` failed with exit status {answer.code}: {complaint(answer)}"

    def _note_ready(self, found: State) -> None:
        noted = note.read(self.machine, found.name) or Note(self.engine.name)
        anonymous = {**noted.anonymous, **found.anonymous}
        noted = replace(noted, engine=self.engine.name, ready=found.run, anonymous=anonymous)
        note.write(self.machine, found.name, noted)

    def _last_words(self, found: State) -> str:
        line = running.last_line(self.engine, found)
        return f"The last line of its log: {line}" if line else "It wrote nothing to its log."


def require_sources(spec: specs.Container, machine: Machine, earlier: Sequence[Resource]) -> None:
    """Unavailable when something that it mounts is neither there nor comes before it; engines would make a folder."""
    coming = {path for one in earlier for path in claims(one).paths}
    for mount in spec.mounts:
        if not isinstance(mount, Bind) or mount.source in coming or os.path.lexists(mount.source):
            continue
        if earlier and machine.state in mount.source.parents:
            continue  # The agent's own, which it makes before it raises anything.
        raise Unavailable(
            f"The container {spec.name} mounts {mount.source}, which is not there; declare it before the container."
        )


def port_taken(spec: specs.Container, holder: Holder) -> str:
    """Which port is held by whom, and what to do, as a sentence."""
    return f"The container {spec.name} needs port {holder.wanted}, which is held by {holder}; stop that program."


def _touched(spec: specs.Container) -> str:
    when = spec.ready.when if spec.ready else None
    return watches.look_of(when.path) if isinstance(when, FileReady) else ""


def _processes(engine: EngineName) -> int | None:
    """A limit of processes to say beside one of files.

    podman fills in the kernel's own greatest one, which a user without CAP_SYS_RESOURCE can't give; it has itself
    lowered its own to the greatest pid by then.
    """
    if engine is not EngineName.PODMAN or _may_raise_limits():
        return None
    most = int(Path("/proc/sys/kernel/pid_max").read_text("ascii"))
    hard = limits.getrlimit(limits.RLIMIT_NPROC)[1]
    return most if hard == limits.RLIM_INFINITY else min(most, hard)


def _may_raise_limits() -> bool:
    """Whether this process has CAP_SYS_RESOURCE (bit 24, capabilities(7))."""
    status = Path("/proc/self/status").read_text("ascii", errors="replace")
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> 24 & 1)
