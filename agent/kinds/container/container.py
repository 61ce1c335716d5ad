"""A container of podman's or docker's.

- Only what changed is replaced: what is declared, its image, a file that it watches. Volumes stay with their name.
- One of ours that was never started, or whose name the engine holds without listing it, is cleared and made again; one
  of somebody else's is never touched.
- It belongs to its engine, not to the agent: nothing of it ends with the agent, and what has stopped is started again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from agent.errors import Unavailable
from agent.kinds import loaded, readiness
from agent.kinds.container import belongings, making, note, running
from agent.kinds.container.raising import Raising, port_taken, require_sources
from agent.kinds.container.state import Phase, State
from agent.kinds.engine import Engine, Engines
from agent.kinds.hiding import hiding
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.readiness import LogIn
from agent.resources import EngineName, Resource, specs

log = logging.getLogger(__name__)


class Action(Enum):
    """MAKE clears what is there of it first. AWAIT waits for one that runs but was not seen ready."""

    MAKE = "make"
    START = "start"
    AWAIT = "await"


@dataclass(frozen=True, slots=True)
class Observed:
    """What is there of it.

    `found` is the container of that name at `engine`; `alive` whether its process is; `elsewhere` the other engines
    that have it of ours. `image` is the id that it should run by, "" when any will do. `watched` is the digest of the
    files it watches. `ready`: this run was seen ready; `tried`: some run of this container was.
    """

    engine: EngineName
    found: State | None
    standing: Standing
    alive: bool
    elsewhere: tuple[EngineName, ...]
    image: str
    watched: str
    ready: bool
    tried: bool


@dataclass(frozen=True, slots=True)
class Container:
    """The kind, with its engines, and how it logs in where that is what readiness means.

    `settling`: one that doesn't say when it is ready must live so long (seconds); what can't work ends sooner.
    """

    engines: Engines = field(default_factory=Engines)
    log_in: LogIn = readiness.log_in
    settling: float = 1.0

    def check(self, spec: specs.Container, machine: Machine, earlier: Sequence[Resource]) -> None:
        """Whether its engine answers, its name and host ports are free or ours, and what it mounts is there."""
        require_sources(spec, machine, earlier)
        engine = self.engines.check(spec.engine, machine, earlier)
        if engine:
            found = running.find(engine, spec.name)
            if found and running.standing(found, spec.name, machine) is Standing.FOREIGN:
                raise running.foreign(engine.name, found)
        holders = running.port_holders(spec)
        for holder in running.strangers(holders, self.engines.here(), machine) if holders else ():
            raise Unavailable(port_taken(spec, holder))

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        """What the engine says of it, and whether what it depends on is as it was."""
        spec = _spec(wanted.resource)
        engine = self.engines.choose(spec.engine, machine)
        found, noted = running.find(engine, spec.name), note.read(machine, spec.name)
        seen = noted.ready if noted and noted.engine is engine.name else ""
        return Observed(
            engine=engine.name,
            found=found,
            standing=running.standing(found, spec.name, machine),
            alive=found is not None and running.process(found) is not None,
            elsewhere=tuple(other.name for other, _ in self._elsewhere(engine, spec, machine)),
            image=loaded.wanted(machine, spec.image),
            watched=making.watched(spec, machine),
            ready=found is not None and seen == found.run,
            tried=found is not None and seen.partition("@")[0] == found.id,
        )

    def standing(self, observed: Observed) -> Standing:
        return observed.standing

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        """Keep what runs as wanted, start what has stopped, replace the rest. Unavailable when it is another's."""
        found = observed.found
        if found and observed.standing is Standing.FOREIGN:
            raise running.foreign(observed.engine, found)
        if observed.elsewhere:
            return _make(Verb.CHANGE, f"it was in {observed.elsewhere[0].value}")
        if found is None:
            return _make(Verb.CREATE, "it was not there")
        mark = running.mark_of(found)
        if mark is None or mark.stamp != wanted.stamp:
            return _make(Verb.CHANGE, "it was made as it was declared before")
        if observed.image and found.image != observed.image:
            return _make(Verb.CHANGE, "its image is another now")
        if found.labels.get(making.WATCHED) != observed.watched:
            return _make(Verb.CHANGE, "a file that it watches has changed")
        if found.phase is Phase.HALF_MADE:
            return _make(Verb.CHANGE, "it was only half made")
        if found.phase is Phase.STOPPED and observed.tried:
            return Plan(Verb.CHANGE, "it had stopped", (Action.START,))
        if found.phase is not Phase.RUNNING:
            return _make(Verb.CHANGE, f"it was {found.status}")
        if not observed.alive:
            return _make(Verb.CHANGE, f"{observed.engine.value} had lost its process")
        if not observed.ready:
            return Plan(Verb.ADOPT, "it runs already, but was not seen ready", (Action.AWAIT,))
        if held is None or not held.stamp:
            return Plan(Verb.ADOPT, "it runs already")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        """A container is never found, only made."""

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        """Have it running and ready. Unavailable, with nothing of it left running, when that can't be."""
        spec = _spec(wanted.resource)
        engine = self.engines.choose(spec.engine, machine)
        self.engines.remember(engine, machine)
        raising = Raising(engine, spec, wanted.late, machine, self.log_in, self.settling)
        with hiding(wanted.late):
            if Action.START in plan.actions and raising.start_again():
                return
            if Action.AWAIT in plan.actions and raising.await_earlier():
                return
            if plan.actions:
                raising.make(mark, self._elsewhere(engine, spec, machine))

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        """Stop and remove it wherever it is ours; with `data` its volumes too."""
        spec = _spec(resource)
        noted = note.read(machine, spec.name)
        left = []
        for engine in self.engines.here():
            try:
                found = running.find(engine, spec.name)
            except Unavailable:
                if noted.engine is engine.name if noted else held.stamp:
                    raise
                continue  # It was never there, and an engine that is off is nobody's concern.
            anonymous = noted.anonymous if noted and noted.engine is engine.name else {}
            if found:
                if running.standing(found, spec.name, machine) is not Standing.MADE:
                    left.append(f"The container {spec.name} of {engine.name.value} is not the agent's; it was left.")
                    continue
                anonymous = {**anonymous, **found.anonymous}
                running.discard(engine, found)
            elif noted is None or noted.engine is not engine.name:
                continue
            belongings.remove_networks(engine, machine)
            volumes = anonymous.values()
            if data:
                left.append(belongings.remove_volumes(engine, volumes, machine))
            else:
                left.append(belongings.kept_volumes(engine, spec, volumes, machine))
        note.remove(machine, spec.name)
        return Removal(" ".join(words for words in left if words))

    def value(self, spec: specs.Container, machine: Machine) -> str | None:
        return None

    def _elsewhere(self, engine: Engine, spec: specs.Container, machine: Machine) -> list[tuple[Engine, State]]:
        """Containers of ours with this name at the other engines that answer."""
        found = []
        for other in self.engines.here():
            if other.name is engine.name:
                continue
            try:
                there = running.find(other, spec.name)
            except Unavailable as error:
                log.debug("not looked for %s there: %s", spec.name, error)
                continue
            if there and running.standing(there, spec.name, machine) is Standing.MADE:
                found.append((other, there))
        return found


def _make(verb: Verb, reason: str) -> Plan[Action]:
    return Plan(verb, reason, (Action.MAKE,))


def _spec(resource: Resource) -> specs.Container:
    assert isinstance(resource.spec, specs.Container)
    return resource.spec
