"""Packages of the distribution: installed when absent, never removed, their daemons never started by them.

- A package that was here is adopted as it is: its units are not touched.
- One that the agent installs is noted in the state folder before that begins; the note is its mark.
- Removing leaves the package and says which command takes it away; what was masked for it is undone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from agent import resources
from agent.errors import Refused
from agent.host import commands, directories, files
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.package import apt, daemons
from agent.kinds.package.apt import Apt, Status
from agent.kinds.package.daemons import Policy, Units
from agent.resources import Resource


class Action(Enum):
    """INSTALL also finishes what was cut short; TIDY only takes away what a killed agent left of that."""

    INSTALL = "install"
    TIDY = "tidy"


@dataclass(frozen=True, slots=True)
class Observed:
    """`noted`: the agent of this state folder installed it, or began to. `untidy`: it was cut short."""

    status: Status
    noted: bool
    untidy: bool


@dataclass(frozen=True, slots=True)
class Package:
    """The kind, with the parts of the machine that it acts on."""

    apt: Apt = field(default_factory=Apt)
    policy: Policy = field(default_factory=Policy)
    units: Units = field(default_factory=Units)

    def check(self, spec: resources.Package, machine: Machine, earlier: Sequence[Resource]) -> None:
        """Refused where there is no apt, or no right to use it, to install what is missing."""
        for program in apt.PROGRAMS:
            if commands.find(program) is None:
                raise Refused(
                    f"Packages can be installed here only with apt, and this machine has no {program}; "
                    "run the agent on Debian or a distribution made from it."
                )
        if self.apt.status(spec.name) is Status.INSTALLED:
            return
        if os.geteuid() != 0:
            raise Refused(f"Installing the package {spec.name} needs root; run the agent as root.")
        self.units.check(spec.masks)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        """What dpkg and our own note say."""
        name = _spec(wanted.resource).name
        noted = daemons.read_note(_note_path(machine, name)) is not None
        return Observed(self.apt.status(name), noted, self.policy.has_leftovers())

    def standing(self, observed: Observed) -> Standing:
        """Ours when it was noted; a package can't bear a mark itself."""
        if observed.status is Status.ABSENT:
            return Standing.ABSENT
        return Standing.MADE if observed.noted else Standing.FOREIGN

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        """Install what isn't there; adopt what is."""
        if observed.status is Status.ABSENT:
            return Plan(Verb.CREATE, "it is not installed", (Action.INSTALL,))
        if observed.status is Status.INTERRUPTED:
            return Plan(Verb.CHANGE, "its installation was cut short", (Action.INSTALL,))
        if observed.untidy:
            return Plan(Verb.CHANGE, "an installation was cut short", (Action.TIDY,))
        if held is None:
            return Plan(Verb.ADOPT, "installed already")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        """A found package is never changed, so there is nothing to keep."""

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        """Install it, with no daemon started. Unavailable while another program changes packages."""
        if not plan.actions:
            return
        with self.apt.alone():
            # First of all: the apt-get of a killed agent may still be at work, and needs its policy.
            self.apt.wait_for_lock()
            with self.policy.in_force():
                if Action.INSTALL in plan.actions:
                    self._install(_spec(wanted.resource), machine)

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        """Leave the package, and undo what was masked for it."""
        name = _spec(resource).name
        path = _note_path(machine, name)
        note = daemons.read_note(path)
        if note is not None:
            self.units.unmask(name, note)
            files.remove(path, uid=os.geteuid())
        if held.found or self.apt.status(name) is Status.ABSENT:
            return Removal()
        return Removal(f"the package {name} stays installed; `apt-get remove {name}` takes it away")

    def value(self, spec: resources.Package, machine: Machine) -> str | None:
        """Nothing refers to a package's value."""
        return None

    def _install(self, spec: resources.Package, machine: Machine) -> None:
        status = self.apt.status(spec.name)
        if status is Status.INTERRUPTED:
            self.apt.finish_interrupted()
            status = self.apt.status(spec.name)
        if status is Status.ABSENT:
            path = _note_path(machine, spec.name)
            note = self.units.intend(spec.masks, daemons.read_note(path))
            _make_folders(path.parent)
            daemons.write_note(path, note)
            self.units.mask(note)
        if status is not Status.INSTALLED:
            self.apt.install(spec.name)


def _spec(resource: Resource) -> resources.Package:
    assert isinstance(resource.spec, resources.Package)
    return resource.spec


def _note_path(machine: Machine, name: str) -> Path:
    return machine.state / "run" / "packages" / f"{name}.json"


def _make_folders(folder: Path) -> None:
    for path in (folder.parent, folder):
        directories.make(path, mode=0o700, uid=os.geteuid(), gid=os.getegid())
