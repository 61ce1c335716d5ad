"""A secret: a value in a file that only its owner can read, made here once or sent by the mesh in a sealed box.

- Made once means once: a lost one is a failure in words, and made again only by command.
- What the mesh sent is the mesh's: it is put right when it is lost or changed, and removed when it is declared no more.
- The two never take each other's file: what was made under one of them may be needed again.
- Its value is in its file and in what it is filled into; never in a reason, a log or an argument.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from agent.errors import Refused, Unavailable
from agent.host import accounts, files
from agent.kinds import marks, places, vault
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.places import Thing
from agent.resources import Random, Resource, Sealed, specs
from agent.resources.grammar import secret_value
from agent.resources.model import sent_beside

_MODE = 0o600
_MADE_HERE = re.compile(rb"([0-9a-f]{2})+")


class Sent(Enum):
    """How the file stands to the value that the mesh sent."""

    SAME = "same"
    OTHER = "other"
    SHUT = "shut"


@dataclass(frozen=True, slots=True)
class Observed:
    """The owner's folder and the secret's file (None: absent), and what the owner is here: (uid, gid).

    `sent` is None for one that is made here; `beside` says then that what the mesh sent under this name is still there.
    """

    folder: Thing | None
    file: Thing | None
    owner: tuple[int, int]
    sent: Sent | None = None
    beside: bool = False


class Action(Enum):
    """What there is to do."""

    WRITE = "write"
    DRESS = "dress"


class Secret:
    """The kind `secret`."""

    def check(self, spec: specs.Secret, machine: Machine, earlier: Sequence[Resource]) -> None:
        vault.check_owner(spec.owner, earlier)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        spec = _spec(wanted.resource)
        folder, owner = vault.look_at_folder(spec.path), accounts.owner_ids(spec.owner)
        file = vault.look(spec.path, folder, digest=isinstance(spec.value, Sealed))
        if isinstance(spec.value, Random):
            return Observed(folder, file, owner, beside=vault.look(sent_beside(spec.path), folder) is not None)
        return Observed(folder, file, owner, _compare(spec.value, file, machine.state))

    def standing(self, observed: Observed) -> Standing:
        return Standing.MADE if observed.file else Standing.ABSENT

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        if observed.sent is Sent.SHUT:
            raise _shut(wanted.resource)
        if observed.file is None:
            if observed.sent is None and held and held.stamp and not observed.beside:
                raise vault.lost(wanted.resource, _spec(wanted.resource).path)
            return Plan(Verb.CREATE, "not there yet", (Action.WRITE,))
        if observed.sent is Sent.OTHER:
            as_before = held is not None and held.stamp == wanted.stamp
            return Plan(Verb.CHANGE, "other content" if as_before else "the mesh has changed it", (Action.WRITE,))
        drift = observed.file.drift(_MODE, observed.owner) or vault.folder_drift(observed.folder, observed.owner)
        if drift:
            return Plan(Verb.CHANGE, drift, (Action.DRESS,))
        if observed.beside:
            return Plan(Verb.CHANGE, "the mesh's is wanted no more", (Action.DRESS,))
        if held is None or not held.stamp:
            return Plan(Verb.ADOPT, "it was here before")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        """Nothing is found in the agent's own folder."""

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        spec = _spec(wanted.resource)
        uid, gid = owner = accounts.owner_ids(spec.owner)
        written = marks.encode(mark)
        if plan.actions:
            vault.make_folder(spec.path, owner)
        if Action.WRITE in plan.actions:
            files.write(spec.path, _value(wanted.resource, machine), mode=_MODE, uid=uid, gid=gid, mark=written)
        else:
            places.dress(spec.path, mode=_MODE, uid=uid, gid=gid, mark=written)
        if isinstance(spec.value, Random):
            files.remove(sent_beside(spec.path), uid=uid)

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        spec = _spec(resource)
        if isinstance(spec.value, Random) and not data and held.stamp:
            return Removal(f"{spec.path} was kept, because data may need it.")
        vault.remove([spec.path])
        return Removal()

    def value(self, spec: specs.Secret, machine: Machine) -> str | None:
        """What its file holds; Unavailable when that is nothing which the agent has written there."""
        content = vault.read(spec.path)
        if content is None:
            return None
        if isinstance(spec.value, Sealed):
            try:
                return secret_value(content, f"what {spec.path} holds")
            except Refused as error:
                why = f"{error}, which the mesh never sent; it is put right when it is next looked at."
                raise Unavailable(why) from error
        if not _MADE_HERE.fullmatch(content):
            raise Unavailable(
                f"{spec.path} doesn't hold what the agent wrote there; put it back from a copy, or make it anew "
                f"with `agent up --remake secret:{spec.path.name}`."
            )
        return content.decode("ascii")


def _value(resource: Resource, machine: Machine) -> bytes:
    value = _spec(resource).value
    if isinstance(value, Random):
        return secrets.token_hex(value.size).encode("ascii")
    opened = vault.unseal(value.box, machine.state)
    if opened is None:
        raise _shut(resource)
    try:
        return secret_value(opened, "what the mesh sealed").encode("utf-8")
    except Refused as error:
        raise Unavailable(f"The secret {resource.name} can't be used: {error}; set it anew on the founder.") from error


def _compare(value: Sealed, file: Thing | None, state: Path) -> Sent:
    opened = vault.unseal(value.box, state)
    if opened is None:
        return Sent.SHUT
    return Sent.SAME if file and file.sha256 == hashlib.sha256(opened).hexdigest() else Sent.OTHER


def _shut(resource: Resource) -> Unavailable:
    return Unavailable(
        f"The secret {resource.name} is sealed for another key than this node's, so it can't be opened here; have the "
        "founder make a token with `agent control token create NAME --replace`, NAME being this node's, and join again."
    )


def _spec(resource: Resource) -> specs.Secret:
    assert isinstance(resource.spec, specs.Secret)
    return resource.spec
