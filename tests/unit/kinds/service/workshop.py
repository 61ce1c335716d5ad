"""One service in one state folder, as a reconciler sees it, and what lives of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.host import cgroups
from agent.kinds.kind import Held, Machine, Plan, Verb, Wanted
from agent.kinds.service import Service
from agent.kinds.service.action import Action
from agent.kinds.service.detached import Observed
from agent.kinds.service.record import Identity
from agent.resources import Context, Resource, parse_resource


@dataclass(frozen=True)
class Workshop:
    """One state folder (its path holds a space) and what a reconciler does with services in it."""

    ground: Path
    state: Path
    kind: Service

    @property
    def machine(self) -> Machine:
        return Machine(self.state, b"key", lambda name: iter(()))

    def declare(self, command: list[str] | str, **more: object) -> Resource:
        """The service `web`; a string is a script of sh, whose $0 is the ground (so that it is found by it)."""
        if isinstance(command, str):
            command = ["sh", "-c", command, str(self.ground)]
        item = {"kind": "service", "name": "web", "command": command, "stop_timeout": 10, **more}
        return parse_resource(item, "resource", Context(self.state))

    def wanted(self, resource: Resource, late: Mapping[str, str] | None = None) -> Wanted:
        values = late or {}
        return Wanted(resource, self.machine.stamp(resource, values), values)

    def observe(self, resource: Resource, late: Mapping[str, str] | None = None) -> Observed:
        observed = self.kind.observe(self.wanted(resource, late), self.machine)
        assert isinstance(observed, Observed)
        return observed

    def plan(self, resource: Resource, late: Mapping[str, str] | None = None) -> Plan[Action]:
        wanted = self.wanted(resource, late)
        return self.kind.plan(wanted, self.kind.observe(wanted, self.machine), Held(False, wanted.stamp))

    def up(self, resource: Resource, late: Mapping[str, str] | None = None) -> Plan[Action]:
        """Plan and, if that says so, apply."""
        plan, wanted = self.plan(resource, late), self.wanted(resource, late)
        if plan.verb is not Verb.KEEP:
            self.kind.check(resource.spec, self.machine, ())  # type: ignore[arg-type]
            self.kind.apply(wanted, plan, self.machine.mark(wanted, found=False), self.machine)
        return plan

    def main(self, resource: Resource) -> int:
        found = self.observe(resource).main
        assert found is not None
        return found.pid

    def down(self, resource: Resource) -> None:
        self.kind.remove(resource, Held(False, ""), self.machine, data=False)

    @property
    def identity(self) -> Identity:
        return Identity(self.state, "web")

    def leave_group(self) -> None:
        """As on a machine where no control group can be made."""
        group = cgroups.find(self.identity.group)
        if group is not None:
            for process in cgroups.members(group):
                (group.parent / "cgroup.procs").write_text(str(process.pid))
            cgroups.remove(group)

    def left(self) -> list[int]:
        """Every living process that names the ground in its environment or arguments."""
        return living(self.ground)


def living(ground: Path) -> list[int]:
    found = []
    needle = os.fsencode(ground)
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        with suppress(OSError):
            text = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            if needle in text and state != "Z":
                found.append(int(process.name))
    return found


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)
