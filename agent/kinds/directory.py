"""A directory: its path, mode and owner.

- Directories on the way are resources too; none is made silently.
- A found one gets its mode and owner back and stays; a made one goes when it is empty. What lies in a data folder goes
  with it, but only when that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from agent.host import accounts, directories
from agent.kinds import marks, places, preserved
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.places import Form, Other, Thing
from agent.kinds.preserved import Previous
from agent.resources import Resource, specs


@dataclass(frozen=True, slots=True)
class Observed:
    """What is at the path (None: nothing), what the declared owner is here, (uid, gid), and who is looking."""

    thing: Thing | None
    owner: tuple[int, int]
    id: str
    state: Path


class Action(Enum):
    """What there is to do."""

    MAKE = "make"


class Directory:
    """The kind `directory`."""

    def check(self, spec: specs.Directory, machine: Machine, earlier: Sequence[Resource]) -> None:
        places.check(spec.path, Form.DIRECTORY, spec.owner, earlier)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        spec = _spec(wanted.resource)
        owner = accounts.owner_ids(spec.owner)
        thing = places.require(spec.path, Form.DIRECTORY, uid=owner[0])
        return Observed(thing, owner, wanted.resource.id, machine.state)

    def standing(self, observed: Observed) -> Standing:
        if observed.thing is None:
            return Standing.ABSENT
        return marks.standing(observed.thing.mark, observed.id, observed.state)

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        thing = observed.thing
        if thing is None:
            return Plan(Verb.CREATE, "not there yet", (Action.MAKE,))
        drift = thing.drift(_spec(wanted.resource).mode, observed.owner)
        if drift:
            return Plan(Verb.CHANGE, drift, (Action.MAKE,))
        # Without a stamp a crash may have come between making it and marking it.
        if held is None or not held.stamp:
            return Plan(Verb.ADOPT, "there already, as wanted")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        thing, id = observed.thing, wanted.resource.id
        if thing is not None and self.standing(observed) is Standing.FOREIGN:
            as_wanted = not self.plan(wanted, observed, None).actions
            if not (as_wanted and preserved.recall(machine, id)):
                preserved.keep(machine, id, Previous(thing.mode, thing.uid, thing.gid, thing.mark))

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        spec = _spec(wanted.resource)
        uid, gid = accounts.owner_ids(spec.owner)
        directories.make(spec.path, mode=spec.mode, uid=uid, gid=gid, mark=marks.encode(mark))

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        spec = _spec(resource)
        uid = places.uid_of(spec.owner)
        thing = places.look(spec.path, Form.DIRECTORY, uid=uid)
        if isinstance(thing, Other):
            return Removal(f"{spec.path} is {thing.what} now, which the agent didn't put there; it was left.")
        if thing is None:
            preserved.discard(machine, resource.id)
            return Removal()
        if held.found:
            return _give_back(resource, spec, uid, machine)
        return _take(resource, spec, uid, thing, held, machine, data=data)

    def value(self, spec: specs.Directory, machine: Machine) -> str | None:
        return None


def _give_back(resource: Resource, spec: specs.Directory, uid: int, machine: Machine) -> Removal:
    previous = preserved.recall(machine, resource.id)
    places.unmark(spec.path, uid=uid)
    if previous is None:
        return Removal(
            f"{spec.path} was here before the agent; what mode and owner it had is no longer known, so they were left."
        )
    directories.make(spec.path, mode=previous.mode, uid=previous.uid, gid=previous.gid, mark=previous.mark)
    preserved.discard(machine, resource.id)
    return Removal()


def _take(
    resource: Resource,
    spec: specs.Directory,
    uid: int,
    thing: Thing,
    held: Held,
    machine: Machine,
    *,
    data: bool,
) -> Removal:
    # What was only intended and bears no mark may be somebody else's by now.
    ours = bool(held.stamp) or marks.standing(thing.mark, resource.id, machine.state) is Standing.MADE
    if spec.data and data and ours:
        directories.remove_tree(spec.path, uid=uid)
        return Removal()
    if directories.remove(spec.path, uid=uid):
        return Removal()
    if spec.data:
        return Removal(f"{spec.path} holds data and was kept; take it away with `rm -r {spec.path}`.")
    places.unmark(spec.path, uid=uid)
    return Removal(
        f"{spec.path} holds what the agent didn't put there and was left; take it away with `rm -r {spec.path}`."
    )


def _spec(resource: Resource) -> specs.Directory:
    assert isinstance(resource.spec, specs.Directory)
    return resource.spec
