"""A file: its path, content, mode and owner.

- Its content is written whole or not at all; a blob is streamed; mode and owner are mended without writing it again.
- No content and no digest of one is in a reason: a template may hold secrets.
- A found file is given back byte for byte, with its mode and owner; a made one is removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from agent.difference import unified
from agent.host import accounts, files
from agent.kinds import marks, places, preserved
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.places import Form, Other, Thing
from agent.kinds.preserved import Previous
from agent.resources import FromBlob, Inline, Resource, specs

_LARGEST_SHOWN = 256 * 1024


@dataclass(frozen=True, slots=True)
class Observed:
    """What is at the path (None: nothing), what the declared owner is here, (uid, gid), and who is looking."""

    thing: Thing | None
    owner: tuple[int, int]
    id: str
    state: Path


class Action(Enum):
    """What there is to do."""

    WRITE = "write"
    DRESS = "dress"


class File:
    """The kind `file`."""

    def check(self, spec: specs.File, machine: Machine, earlier: Sequence[Resource]) -> None:
        places.check(spec.path, Form.FILE, spec.owner, earlier)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        spec = _spec(wanted.resource)
        owner = accounts.owner_ids(spec.owner)
        thing = places.require(spec.path, Form.FILE, uid=owner[0], digest=True)
        return Observed(thing, owner, wanted.resource.id, machine.state)

    def standing(self, observed: Observed) -> Standing:
        if observed.thing is None:
            return Standing.ABSENT
        return marks.standing(observed.thing.mark, observed.id, observed.state)

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        thing = observed.thing
        if thing is None:
            return Plan(Verb.CREATE, "not there yet", (Action.WRITE,))
        drift = thing.drift(_spec(wanted.resource).mode, observed.owner)
        if thing.sha256 != _sha256(wanted):
            reason = f"other content, and {drift}" if drift else "other content"
            return Plan(Verb.CHANGE, reason, (Action.WRITE,))
        if drift:
            return Plan(Verb.CHANGE, drift, (Action.DRESS,))
        # Without a stamp a crash may have come before an adopted one was marked.
        if held is None or not held.stamp:
            return Plan(Verb.ADOPT, "there already, as wanted")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        # One that bears our mark holds our content: what it was before was kept when it got the mark.
        thing, id = observed.thing, wanted.resource.id
        if thing is None or self.standing(observed) is not Standing.FOREIGN:
            return
        # One without a mark that is just as wanted while a previous content is known was written by us, on a
        # file system without marks, before the ledger was lost.
        if not self.plan(wanted, observed, None).actions and preserved.recall(machine, id):
            return
        previous = Previous(thing.mode, thing.uid, thing.gid, thing.mark)
        path = _spec(wanted.resource).path
        preserved.keep(machine, id, previous, files.chunks(path, uid=observed.owner[0]))

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        spec = _spec(wanted.resource)
        uid, gid = accounts.owner_ids(spec.owner)
        written = marks.encode(mark)
        if Action.WRITE in plan.actions:
            content = _content(wanted, machine)
            files.write(spec.path, content, mode=spec.mode, uid=uid, gid=gid, mark=written)
        else:
            places.dress(spec.path, mode=spec.mode, uid=uid, gid=gid, mark=written)

    def difference(self, wanted: Wanted, machine: Machine, hidden: Mapping[str, str]) -> str:
        spec = _spec(wanted.resource)
        if isinstance(spec.content, FromBlob):
            return ""
        new = spec.content.template.render(lambda name: f"${{{name}}}")
        # A piece is larger than what is shown, so the first one tells whether there is more.
        there = next(files.chunks(spec.path, uid=places.uid_of(spec.owner)), b"")
        if len(there) > _LARGEST_SHOWN:
            return ""
        try:
            old = there.decode("utf-8")
        except UnicodeDecodeError:
            return ""
        for name, value in hidden.items():
            old, new = old.replace(value, f"${{{name}}}"), new.replace(value, f"${{{name}}}")
        return unified(old, new, "is", "will be")

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        spec = _spec(resource)
        uid = places.uid_of(spec.owner)
        thing = places.look(spec.path, Form.FILE, uid=uid)
        if isinstance(thing, Other):
            return Removal(f"{spec.path} is {thing.what} now, which the agent didn't put there; it was left.")
        if held.found:
            return _give_back(resource, spec, uid, thing, machine)
        if thing is None:
            return Removal()
        # What was only intended and bears no mark may be somebody else's by now.
        if not held.stamp and marks.standing(thing.mark, resource.id, machine.state) is not Standing.MADE:
            return Removal(f"{spec.path} may not be the agent's and was left; take it away with `rm {spec.path}`.")
        files.remove(spec.path, uid=uid)
        return Removal()

    def value(self, spec: specs.File, machine: Machine) -> str | None:
        return None


def _give_back(resource: Resource, spec: specs.File, uid: int, thing: Thing | None, machine: Machine) -> Removal:
    previous = preserved.recall(machine, resource.id)
    if previous is None:
        if thing is None:
            return Removal()
        places.unmark(spec.path, uid=uid)
        return Removal(
            f"{spec.path} was here before the agent; what it held is no longer known, so it was left as it is."
        )
    files.write(
        spec.path,
        preserved.content(machine, resource.id),
        mode=previous.mode,
        uid=previous.uid,
        gid=previous.gid,
        mark=previous.mark,
    )
    preserved.discard(machine, resource.id)
    return Removal()


def _content(wanted: Wanted, machine: Machine) -> bytes | Iterable[bytes]:
    content = _spec(wanted.resource).content
    if isinstance(content, FromBlob):
        return machine.read_blob(content.name)
    return _rendered(content, wanted)


def _sha256(wanted: Wanted) -> str:
    content = _spec(wanted.resource).content
    if isinstance(content, FromBlob):
        return content.sha256
    return hashlib.sha256(_rendered(content, wanted)).hexdigest()


def _rendered(content: Inline, wanted: Wanted) -> bytes:
    return content.template.render(lambda name: wanted.late[name]).encode("utf-8")


def _spec(resource: Resource) -> specs.File:
    assert isinstance(resource.spec, specs.File)
    return resource.spec
