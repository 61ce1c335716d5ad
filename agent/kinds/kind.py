"""What every kind of resource can do, and the values it does it with.

Four verbs: a kind is *parsed* in `agent.resources`; here it is *observed*, *planned* (pure: what is wanted × what is
there → actions; a second plan is empty) and *applied* or *removed*. A kind raises `Unavailable` for what can't be done
now and `Refused` for what can never be done here; both become that resource's failure in words.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

from agent.fields import canonical
from agent.resources import Resource, Spec

S = TypeVar("S", bound=Spec, contravariant=True)
O = TypeVar("O")  # noqa: E741 - what was observed
A = TypeVar("A")


class Standing(Enum):
    """Whose a thing is, as far as the thing itself can tell: by this state folder's mark on it."""

    ABSENT = "absent"
    FOREIGN = "foreign"
    MADE = "made"
    FOUND = "found"

    @property
    def was_here_before_us(self) -> bool:
        return self in (Standing.FOREIGN, Standing.FOUND)


class Verb(Enum):
    """What a plan comes down to, in the word that a person reads afterwards."""

    KEEP = "kept"
    ADOPT = "adopted"
    CREATE = "created"
    CHANGE = "changed"


@dataclass(frozen=True, slots=True)
class Plan(Generic[A]):
    """`reason` says for a person why it isn't KEEP; it never holds a secret. No actions means KEEP or ADOPT."""

    verb: Verb
    reason: str = ""
    actions: tuple[A, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A resource together with what is only known when it is applied.

    `late` holds the values of its secrets and fingerprints by name (`secret.x`). `stamp` is the digest of the whole:
    of the resource as declared, and, under the node's own key, of the late values; it can be shown.
    """

    resource: Resource
    stamp: str
    late: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Held:
    """What the ledger says of a resource of ours. `stamp` is what was last applied whole; "" before that."""

    found: bool
    stamp: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What is written on a thing of ours: which state folder's, which id, found or made, applied as what."""

    state: str
    id: str
    found: bool
    stamp: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What kinds act with: the state folder, the bundle's blobs (1 MiB chunks), a key that never leaves the node.

    `program` is another text for each agent file, and stands for the content of the agent's own copy: of the one that
    is there or, where it is asked what an `up` would do, will be. "" where nobody knows.
    """

    state: Path
    node_key: bytes = field(repr=False)
    read_blob: Callable[[str], Iterator[bytes]]
    program: str = ""

    def stamp(self, resource: Resource, late: Mapping[str, str]) -> str:
        """The digest of a resource with its late values; equal exactly when both are."""
        if not late:
            return resource.digest
        sealed = hmac.new(self.node_key, canonical(dict(late)).encode("utf-8"), hashlib.sha256)
        return f"{resource.digest}.{sealed.hexdigest()}"

    def mark(self, wanted: Wanted, found: bool) -> Mark:
        """The mark for a resource of this state folder."""
        return Mark(str(self.state), wanted.resource.id, found, wanted.stamp)


@dataclass(frozen=True, slots=True)
class Removal:
    """What a removal left behind, as a sentence with the command that would finish it; empty when nothing was."""

    left: str = ""


class Kind(Protocol[S, O, A]):
    """One kind of resource. `O` is what it observes, `A` its actions; both are its own frozen values."""

    def check(self, spec: S, machine: Machine, earlier: Sequence[Resource]) -> None:
        """Whether it can be done here, without touching anything.

        `earlier` are the resources before it in its list: what those will bring (a package's program) counts as there.
        Raises Refused for never, Unavailable for not now (a port held by another program).
        """

    def observe(self, wanted: Wanted, machine: Machine) -> O:
        """Look, without touching anything. Raises Unavailable when it cannot be seen."""

    def standing(self, observed: O) -> Standing:
        """Whose the observed thing is."""

    def plan(self, wanted: Wanted, observed: O, held: Held | None) -> Plan[A]:
        """What to do, purely. `held` is None when the ledger knows nothing of it (yet, or any more)."""

    def preserve(self, wanted: Wanted, observed: O, machine: Machine) -> None:
        """Keep what a found thing was before the first touch, durably, so that `remove` can give it back."""

    def apply(self, wanted: Wanted, plan: Plan[A], mark: Mark, machine: Machine) -> None:
        """Do it, and mark it as ours. Returns when it is ready. Safe to repeat after dying half-way."""

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        """Take it away, or give back what was found. `data`: what lies in a data folder goes too.

        Removing what is already gone succeeds.
        """

    def value(self, spec: S, machine: Machine) -> str | None:
        """What a late reference to this resource stands for; None for a kind that is never referred to."""


@runtime_checkable
class Comparing(Protocol):
    """A kind that can show what would change inside a thing."""

    def difference(self, wanted: Wanted, machine: Machine, hidden: Mapping[str, str]) -> str:
        """A unified diff from what is there to what is wanted; "" where there is none to show.

        `hidden` are values by the reference that stands for them (`secret.x`): none of them is in what is shown.
        """
