"""An image of the container engine: loaded from an archive that the bundle carries, or fetched from its registry.

- A carried one never asks a registry, and is loaded again when the engine has lost it. Its bytes are streamed.
- It is known by the id that the load resolved, whatever the archive and the engine call it.
- One that was there before is left there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from agent.kinds import loaded
from agent.kinds.engine import Engine, EngineFailed, Engines
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.loaded import Record
from agent.resources import EngineName, FromBlob, Resource, specs

log = logging.getLogger(__name__)

_LOAD_SECONDS = 3600.0
_LOADED = re.compile(r"^Loaded image(?:\(s\)| ID)?: *(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Observed:
    """The engine that is asked, what is remembered of the image, and whether the engine has it."""

    engine: EngineName
    record: Record | None
    there: bool


class Action(Enum):
    """What there is to do."""

    LOAD = "load"
    PULL = "pull"


@dataclass(frozen=True, slots=True)
class Image:
    """The kind `image`, with the engines that it acts on."""

    engines: Engines = field(default_factory=Engines)

    def check(self, spec: specs.Image, machine: Machine, earlier: Sequence[Resource]) -> None:
        """Whether there is an engine, and it answers."""
        self.engines.check(spec.engine, machine, earlier)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        spec = _spec(wanted.resource)
        engine, record = self.engines.choose(spec.engine, machine), loaded.read(machine, spec.name)
        name = spec.name if spec.archive is None else record.image if record else ""
        return Observed(engine.name, record, bool(name and loaded.id_of(engine, name)))

    def standing(self, observed: Observed) -> Standing:
        if not observed.there:
            return Standing.ABSENT
        if observed.record is None:
            return Standing.FOREIGN
        return Standing.FOUND if observed.record.found else Standing.MADE

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        spec, record = _spec(wanted.resource), observed.record
        if spec.archive is None:
            if not observed.there:
                return Plan(Verb.CREATE, f"{observed.engine.value} doesn't have it", (Action.PULL,))
        elif record is None or not record.image:
            return Plan(Verb.CREATE, "it was not loaded", (Action.LOAD,))
        elif record.archive != spec.archive.sha256:
            return Plan(Verb.CHANGE, "the bundle carries another one", (Action.LOAD,))
        elif record.engine is not observed.engine:
            return Plan(Verb.CHANGE, f"it was loaded into {record.engine.value}", (Action.LOAD,))
        elif not observed.there:
            return Plan(Verb.CHANGE, f"{observed.engine.value} has lost it", (Action.LOAD,))
        if held is None or not held.stamp:
            return Plan(Verb.ADOPT, f"{observed.engine.value} has it already")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        """A found image is never changed."""

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        spec = _spec(wanted.resource)
        engine = self.engines.choose(spec.engine, machine)
        self.engines.remember(engine, machine)
        if spec.archive and Action.LOAD in plan.actions:
            _load(engine, machine, spec.name, spec.archive)
            loaded.let_go(engine, machine)
        elif Action.PULL in plan.actions:
            record = Record(spec.name, engine.name, archive="")
            loaded.write(machine, record)
            loaded.write(machine, replace(record, image=loaded.pull(engine, spec.name), names=(spec.name,)))

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        name = _spec(resource).name
        record = loaded.read(machine, name)
        if record is None:
            return Removal()
        engine = next((one for one in self.engines.here() if one.name is record.engine), None)
        left = ""
        if engine and record.image and not record.found and not held.found:
            loaded.let_go(engine, machine)
            left = loaded.remove(engine, record)
        loaded.forget(machine, name)
        return Removal(left)

    def value(self, spec: specs.Image, machine: Machine) -> str | None:
        return None


def parse_loaded(text: str) -> tuple[str, ...]:
    """What an engine says that it loaded: names (`localhost/app:1`) and, where the archive gives none, ids."""
    return tuple(name.strip() for match in _LOADED.finditer(text) for name in match[1].split(","))


def _load(engine: Engine, machine: Machine, name: str, archive: FromBlob) -> None:
    earlier = loaded.read(machine, name)
    doing = f"load the image {name}"
    same = earlier is not None and (earlier.engine, earlier.archive) == (engine.name, archive.sha256)
    if earlier and same and not earlier.image:
        others = earlier.others  # What a load that was cut short has left is not what was there before.
    else:
        listed = engine.run(["images", "--all", "--quiet", "--no-trunc"], "list its images").stdout
        others = tuple(sorted({id.removeprefix("sha256:") for id in listed.decode(errors="replace").split()}))
    previous = earlier.previous if earlier and earlier.engine is engine.name else ()
    if earlier and earlier.engine is engine.name and earlier.image and not earlier.found:
        previous = (*previous, earlier.image)
    record = Record(name, engine.name, archive.sha256, others=others, previous=previous)
    loaded.write(machine, record)
    answer = engine.feed(["load"], machine.read_blob(archive.name), doing, seconds=_LOAD_SECONDS, tell=_tell)
    names = parse_loaded((answer.stdout + b"\n" + answer.stderr).decode(errors="replace"))
    ids = sorted({loaded.id_of(engine, one) for one in names} - {""})
    if len(ids) != 1:
        raise EngineFailed(engine.name, doing, f"its archive holds {len(ids)} images; carry exactly one in each")
    image = ids[0]
    found = image in others and image not in previous
    tags = tuple(one for one in names if not one.startswith("sha256:"))
    kept = tuple(id for id in previous if id != image)
    loaded.write(machine, replace(record, image=image, names=tags, found=found, others=(), previous=kept))


def _tell(line: str) -> None:
    log.debug("load: %s", line)


def _spec(resource: Resource) -> specs.Image:
    assert isinstance(resource.spec, specs.Image)
    return resource.spec
