"""What the tests of single kinds stand on: a machine with a state folder, and the reconciler's order by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agent.kinds.kind import Held, Kind, Machine, Plan, Removal, Wanted
from agent.resources import Context, Resource, parse_resource


@dataclass(frozen=True)
class Facts:
    sha256: str
    size: int


@dataclass
class Bench:
    """One kind on a real machine: does with it what the reconciler does, and remembers what the ledger would."""

    machine: Machine
    blobs: dict[str, bytes]
    held: dict[str, Held] = field(default_factory=dict)

    def facts(self, name: str) -> Facts | None:
        content = self.blobs.get(name)
        return None if content is None else Facts(sha256(content).hexdigest(), len(content))

    def read(self, name: str) -> bytes:
        return self.blobs[name]

    def resource(self, kind: str, name: str | Path, **spec: Any) -> Resource:
        context = Context(self.machine.state, blobs=self)
        return parse_resource({"kind": kind, "name": str(name), **spec}, "resource[0]", context)

    def wanted(self, resource: Resource, late: Mapping[str, str] = {}) -> Wanted:
        return Wanted(resource, self.machine.stamp(resource, late), late)

    def plan(self, kind: Kind[Any, Any, Any], resource: Resource, late: Mapping[str, str] = {}) -> Plan[Any]:
        wanted = self.wanted(resource, late)
        return kind.plan(wanted, kind.observe(wanted, self.machine), self.held.get(resource.id))

    def make(self, kind: Kind[Any, Any, Any], resource: Resource, late: Mapping[str, str] = {}) -> Plan[Any]:
        """Observe, plan, preserve, apply."""
        wanted, held = self.wanted(resource, late), self.held.get(resource.id)
        observed = kind.observe(wanted, self.machine)
        plan = kind.plan(wanted, observed, held)
        found = held.found if held else kind.standing(observed).was_here_before_us
        if found and held is None:
            kind.preserve(wanted, observed, self.machine)
        kind.apply(wanted, plan, self.machine.mark(wanted, found), self.machine)
        self.held[resource.id] = Held(found, wanted.stamp)
        return plan

    def remove(self, kind: Kind[Any, Any, Any], resource: Resource, *, data: bool = False) -> Removal:
        removal = kind.remove(resource, self.held[resource.id], self.machine, data=data)
        del self.held[resource.id]
        return removal

    def forget(self) -> None:
        """The ledger is lost."""
        self.held.clear()


@pytest.fixture
def bench(ground: Path) -> Bench:
    (ground / "state").mkdir(mode=0o711)
    blobs: dict[str, bytes] = {}

    def read_blob(name: str) -> Iterator[bytes]:
        content = blobs[name]
        for start in range(0, len(content), 1024 * 1024):
            yield content[start : start + 1024 * 1024]

    return Bench(Machine(ground / "state", b"k" * 32, read_blob), blobs)
