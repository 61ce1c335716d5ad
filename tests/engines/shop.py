"""One state folder with real engines under it: lists are made true as an agent does it, ledger and all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from agent.errors import Refused
from agent.kinds import KINDS
from agent.kinds.container import Container
from agent.kinds.engine import Engines
from agent.kinds.image import Image
from agent.kinds.kind import Machine
from agent.node.ledger import Ledger, open_ledger
from agent.reconcile import Finding, Outcome, Reconciler, Step, Surveyor, check
from agent.resources import Context, Origin, Resource, check_within, parse_list
from tests.engines.docker import Docker
from tests.engines.podman import Podman

Engine = Podman | Docker
Item = dict[str, Any]


@dataclass(frozen=True)
class Facts:
    sha256: str
    size: int


@dataclass
class Shop:
    """`engine` is the one that is on the machine; `others` are there too when a test says so."""

    ground: Path
    engine: Engine
    blobs: dict[str, bytes] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    others: tuple[Engine, ...] = ()
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = self.ground / "state"
        self.state.mkdir(mode=0o711, exist_ok=True)
        (self.state / "run").mkdir(mode=0o700, exist_ok=True)
        self.ledger: Ledger = open_ledger(self.state, time.time, write=True)

    @property
    def engines(self) -> Engines:
        here = {one.name: one for one in (self.engine, *self.others)}
        environment = {name: value for one in here.values() for name, value in one.environment.items()}
        return Engines(environment, find=lambda name: f"/usr/bin/{name}" if name in here else None)

    @property
    def kinds(self) -> Mapping[str, Any]:
        return {**KINDS, "image": Image(self.engines), "container": Container(self.engines, settling=0.3)}

    @property
    def machine(self) -> Machine:
        return Machine(self.state, b"k" * 32, self.read_blob)

    @property
    def reconciler(self) -> Reconciler:
        return Reconciler(self.ledger, self.machine, self.kinds, time.monotonic)

    def resources(self, *items: Item) -> tuple[Resource, ...]:
        listed = parse_list(items, Context(self.state, blobs=self))
        check_within(listed)
        return listed

    def up(self, *items: Item, prune: bool = True) -> Outcome:
        """Make a list true. What it did is in `steps`."""
        self.steps.clear()
        return self.reconciler.apply(self.resources(*items), Origin.CARRIED, prune=prune, tell=self.steps.append)

    def raised(self, *items: Item) -> list[tuple[str, str]]:
        """Make a list true, without a failure, and see that nothing is left to do; what was done: (id, what)."""
        outcome = self.up(*items)
        assert not outcome.failed, outcome.failed
        did = [(step.id, step.what) for step in self.steps]
        assert self.up(*items).changes == 0, self.steps
        return did

    def failure(self, *items: Item) -> str:
        """Try to make a list true; why the last of it failed."""
        outcome = self.up(*items)
        return outcome.failed[f"{items[-1]['kind']}:{items[-1]['name']}"]

    def plan(self, *items: Item) -> list[Finding]:
        return Surveyor(self.ledger, self.machine, self.kinds).survey(self.resources(*items), Origin.CARRIED)

    def check(self, *items: Item) -> None:
        check(self.resources(*items), self.kinds, self.machine)

    def reset(self) -> Mapping[str, str]:
        self.steps.clear()
        return self.reconciler.remove_everything(self.steps.append)

    def lose_ledger(self) -> None:
        """As after the loss of everything but what is on the machine."""
        self.ledger.close()
        for path in self.state.glob("ledger.db*"):
            path.unlink()
        self.ledger = open_ledger(self.state, time.time, write=True)

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.run("container", "inspect", name))[0]
        return found

    def image_of(self, name: str) -> str:
        return str(self.inspect(name)["Image"]).removeprefix("sha256:")

    def image_ids(self) -> set[str]:
        ids = self.engine.run("images", "--all", "--quiet", "--no-trunc").split()
        return {id.removeprefix("sha256:") for id in ids}

    def names(self) -> set[str]:
        return set(self.engine.run("ps", "--all", "--format", "{{.Names}}").split())

    def facts(self, name: str) -> Facts | None:
        content = self.blobs.get(name)
        return None if content is None else Facts(sha256(content).hexdigest(), len(content))

    def read(self, name: str) -> bytes:
        return self.blobs[name]

    def read_blob(self, name: str) -> Iterator[bytes]:
        content = self.blobs[name]
        for start in range(0, len(content), 1024 * 1024):
            yield content[start : start + 1024 * 1024]
        if name in self.damaged:
            raise Refused(f"{name} is not what was packed.")

    def beside(self, name: str) -> Shop:
        """Another state folder on the same machine."""
        return replace(self, ground=self.ground / name, blobs=self.blobs, steps=[])
