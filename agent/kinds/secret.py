"""A secret: random bytes, made once, in a file that only its owner can read.

- Made once means once: a lost one is a failure in words, and made again only by command.
- Its value is in its file and in what it is filled into; never in a reason, a log or an argument.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from agent.errors import Unavailable
from agent.host import accounts, files
from agent.kinds import marks, places, vault
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.places import Thing
from agent.resources import Resource, specs

_MODE = 0o600
_VALUE = re.compile(rb"([0-9a-f]{2})+")


@dataclass(frozen=True, slots=True)
class Observed:
    """The owner's folder and the secret's file (None: absent), and what the owner is here: (uid, gid)."""

    folder: Thing | None
    file: Thing | None
    owner: tuple[int, int]


class Action(Enum):
    """What there is to do."""

    MAKE = "make"
    DRESS = "dress"


class Secret:
    """The kind `secret`."""

    def check(self, spec: specs.Secret, machine: Machine, earlier: Sequence[Resource]) -> None:
        vault.check_owner(spec.owner, earlier)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        spec = _spec(wanted.resource)
        folder = vault.look_at_folder(spec.path)
        return Observed(folder, vault.look(spec.path, folder), accounts.owner_ids(spec.owner))

    def standing(self, observed: Observed) -> Standing:
        return Standing.MADE if observed.file else Standing.ABSENT

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        if observed.file is None:
            if held and held.stamp:
                raise vault.lost(wanted.resource, _spec(wanted.resource).path)
            return Plan(Verb.CREATE, "not there yet", (Action.MAKE,))
        drift = observed.file.drift(_MODE, observed.owner) or vault.folder_drift(observed.folder, observed.owner)
        if drift:
            return Plan(Verb.CHANGE, drift, (Action.DRESS,))
        if held is None or not held.stamp:
            return Plan(Verb.ADOPT, "it was made here before")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        """Nothing is found in the agent's own folder."""

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        spec = _spec(wanted.resource)
        uid, gid = owner = accounts.owner_ids(spec.owner)
        written = marks.encode(mark)
        if plan.actions:
            vault.make_folder(spec.path, owner)
        if Action.MAKE in plan.actions:
            value = secrets.token_hex(spec.size).encode("ascii")
            files.write(spec.path, value, mode=_MODE, uid=uid, gid=gid, mark=written)
        else:
            places.dress(spec.path, mode=_MODE, uid=uid, gid=gid, mark=written)

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        spec = _spec(resource)
        if not data and held.stamp:
            return Removal(f"{spec.path} was kept, because data may need it.")
        vault.remove([spec.path])
        return Removal()

    def value(self, spec: specs.Secret, machine: Machine) -> str | None:
        """The lower-case hexadecimal of its bytes; Unavailable when its file holds anything else."""
        content = vault.read(spec.path)
        if content is None:
            return None
        if not _VALUE.fullmatch(content):
            raise Unavailable(
                f"{spec.path} doesn't hold what the agent wrote there; put it back from a copy, or make it anew "
                f"with `agent up --remake secret:{spec.path.name}`."
            )
        return content.decode("ascii")


def _spec(resource: Resource) -> specs.Secret:
    assert isinstance(resource.spec, specs.Secret)
    return resource.spec
