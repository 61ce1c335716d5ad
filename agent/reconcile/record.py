"""What is remembered of resources between runs, as the reconciler asks for it; the node's ledger fulfils it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from agent.kinds.kind import Held
from agent.resources import Origin, Resource


class Phase(Enum):
    """How far a resource of ours got."""

    INTENDED = "half-made"
    APPLIED = "applied"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Entry:
    """What is recorded of one resource under one origin; `since` is when it was last changed (seconds, epoch)."""

    origin: Origin
    resource: Resource
    position: int
    found: bool
    stamp: str
    phase: Phase
    since: float

    @property
    def held(self) -> Held:
        return Held(self.found, self.stamp)


class Recorded(Protocol):
    """What can be read of it."""

    def entries(self, origin: Origin) -> Sequence[Entry]:
        """This origin's resources, in the order of their positions."""

    def entry(self, origin: Origin, id: str) -> Entry | None:
        """One of them; None when nothing is known of it."""

    def failures(self, origin: Origin) -> Mapping[str, str]:
        """What failed last time, and why, by id."""


class Record(Recorded, Protocol):
    """What can be written as well. Each method has committed when it returns."""

    def intend(self, origin: Origin, resource: Resource, position: int, *, found: bool) -> None:
        """It is about to be touched."""

    def apply(self, origin: Origin, resource: Resource, position: int, *, found: bool, stamp: str) -> None:
        """It is now as `stamp` says; a failure noted earlier is over."""

    def fail(self, origin: Origin, id: str, why: str) -> None:
        """It is not as wanted, for this reason."""

    def clear(self, origin: Origin, id: str) -> None:
        """A failure noted earlier is over."""

    def leave(self, origin: Origin, id: str) -> None:
        """It is about to be removed."""

    def forget(self, origin: Origin, id: str) -> None:
        """It is no longer this origin's."""


class Nothing:
    """What is recorded on a machine where nothing of ours is."""

    def entries(self, origin: Origin) -> Sequence[Entry]:
        return ()

    def entry(self, origin: Origin, id: str) -> Entry | None:
        return None

    def failures(self, origin: Origin) -> Mapping[str, str]:
        return {}


def other(origin: Origin) -> Origin:
    """The one of the two origins that this isn't."""
    return Origin.ASSIGNED if origin is Origin.CARRIED else Origin.CARRIED
