"""The values that every room above speaks of: a resource, and where and for whom a list is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from agent.resources.specs import Spec

SHARED_KINDS = frozenset({"directory", "package"})
# What runs by itself, and can end by itself.
RUNNING_KINDS = frozenset({"service"})
# Which kind's value a late reference `${GROUP.NAME}` stands for.
LATE_KINDS = {"secret": "secret", "fingerprint": "certificate"}


class Origin(Enum):
    """Who put a resource here. The two never remove each other's."""

    CARRIED = "carried"
    ASSIGNED = "assigned"


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing on a machine that is declared.

    `source` is its canonical JSON after every early template was filled, without `needs` and `role`: what
    is hashed, and what the ledger keeps. `needs` holds the declared ids and those of the secrets and
    certificates it refers to.
    """

    kind: str
    name: str
    spec: Spec
    needs: tuple[str, ...]
    source: str = field(repr=False)
    founder_only: bool = False

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def digest(self) -> str:
        """SHA-256 of the source in hexadecimal. Secrets and fingerprints are in it by name only."""
        return hashlib.sha256(self.source.encode("utf-8")).hexdigest()


class BlobFacts(Protocol):
    """What a list must know of a blob it names."""

    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...


class Blobs(Protocol):
    """The blobs beside a list."""

    def facts(self, name: str) -> BlobFacts | None: ...
    def read(self, name: str) -> bytes: ...


class NoBlobs:
    """A list that travels alone carries none."""

    def facts(self, name: str) -> BlobFacts | None:
        return None

    def read(self, name: str) -> bytes:
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Context:
    """Where a list is read: the state folder, what `${…}` is filled with early, and the blobs beside it."""

    state: Path
    values: Mapping[str, str] = field(default_factory=dict)
    blobs: Blobs = field(default_factory=NoBlobs)

    @property
    def known(self) -> dict[str, str]:
        """Every early value: those given, and the machine's own paths."""
        return {**self.values, "state": str(self.state), "agent": str(self.state / "agent")}


def split_id(text: str) -> tuple[str, str]:
    """(kind, name) of an id `KIND:NAME`, split at the first colon; no colon, no name."""
    kind, _, name = text.partition(":")
    return kind, name


def secret_folder(state: Path, owner: str) -> Path:
    """Where an owner's secrets and certificates lie; `owner` is USER or USER:GROUP."""
    return state / "secrets" / owner.partition(":")[0]


def sent_beside(path: Path) -> Path:
    """Where the secret lies that the mesh sent under the name of one that is made on the machine, at `path`.

    No name has a dot, so neither takes the other's place, nor a certificate's.
    """
    return path.with_name(f"{path.name}.mesh")
