"""Packages of the distribution: installed when absent, never removed, their daemons never started by them.

- A package that was here is adopted as it is: its units are not touched, and carried files don't change it.
- One that the agent installs is noted in the state folder before that begins; the note is its mark.
- Files that the bundle carries are all that such a package is installed from: no source is asked. When the bundle
  carries others, the package becomes as new as they are; it never becomes older.
- Removing leaves the package and says which command takes it away; what was masked for it is undone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from agent import resources
from agent.errors import Refused
from agent.host import directories, files
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.kinds.package import carried
from agent.kinds.package.daemons import Policy, Units
from agent.kinds.package.installer import Installer, Status
from agent.kinds.package.installers import Installers
from agent.kinds.package.note import Note, read_note, write_note
from agent.resources import FromBlob, Resource


class Action(Enum):
    """INSTALL also finishes what was cut short; TIDY only takes away what a killed agent left of that."""

    INSTALL = "install"
    TIDY = "tidy"


@dataclass(frozen=True, slots=True)
class Observed:
    """`note`: the agent of this state folder installed it, or began to. `untidy`: it was cut short.

    `carried` tells the carried files that fit this machine.
    """

    status: Status
    note: Note | None
    untidy: bool
    carried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Package:
    """The kind, with the parts of the machine that it acts on."""

    installers: Installers = field(default_factory=Installers)
    policy: Policy = field(default_factory=Policy)
    units: Units = field(default_factory=Units)

    def check(self, spec: resources.Package, machine: Machine, earlier: Sequence[Resource]) -> None:
        """Refused where nothing installs packages, or nothing that is carried fits, or there is no right to do it."""
        installer = self.installers.choose()
        if installer.status(spec.name) is Status.INSTALLED:
            return
        if spec.files and not _fitting(spec, installer):
            architectures = " or ".join(sorted(installer.architectures()))
            raise Refused(
                f"None of the files carried for the package {spec.name} fits this machine, where {installer.name} "
                f"takes {installer.suffix} files for {architectures}; add one to its `files`."
            )
        if os.geteuid() != 0:
            raise Refused(f"Installing the package {spec.name} needs root; run the agent as root.")
        self.units.check(spec.masks)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        """What the package manager and our own note say."""
        spec, installer = _spec(wanted.resource), self.installers.choose()
        return Observed(
            installer.status(spec.name),
            read_note(_note_path(machine, spec.name)),
            self.policy.has_leftovers() or carried.has_leftovers(machine),
            carried.digests(_fitting(spec, installer)),
        )

    def standing(self, observed: Observed) -> Standing:
        """Ours when it was noted; a package can't bear a mark itself."""
        if observed.status is Status.ABSENT:
            return Standing.ABSENT
        return Standing.MADE if observed.note else Standing.FOREIGN

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        """Install what isn't there; adopt what is."""
        if observed.status is Status.ABSENT:
            return Plan(Verb.CREATE, "it is not installed", (Action.INSTALL,))
        if observed.status is Status.INTERRUPTED:
            return Plan(Verb.CHANGE, "its installation was cut short", (Action.INSTALL,))
        if observed.note and observed.carried and observed.carried != observed.note.carried:
            return Plan(Verb.CHANGE, "other files are carried than it was installed from", (Action.INSTALL,))
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
        installer = self.installers.choose()
        with installer.alone():
            # First of all: the package manager of a killed agent may still be at work, and needs its policy and files.
            installer.wait_for_lock()
            carried.clear(machine)
            with self._daemons_kept_down(installer):
                if Action.INSTALL in plan.actions:
                    self._install(_spec(wanted.resource), installer, machine)

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        """Leave the package, and undo what was masked for it."""
        name, installer = _spec(resource).name, self.installers.choose()
        path = _note_path(machine, name)
        note = read_note(path)
        if note is not None:
            self.units.unmask(name, note)
            files.remove(path, uid=os.geteuid())
        if held.found or installer.status(name) is Status.ABSENT:
            return Removal()
        return Removal(f"the package {name} stays installed; `{installer.removal(name)}` takes it away")

    def value(self, spec: resources.Package, machine: Machine) -> str | None:
        """Nothing refers to a package's value."""
        return None

    def _daemons_kept_down(self, installer: Installer) -> AbstractContextManager[None]:
        return self.policy.in_force() if installer.starts_daemons else nullcontext()

    def _install(self, spec: resources.Package, installer: Installer, machine: Machine) -> None:
        path = _note_path(machine, spec.name)
        note = read_note(path)
        if installer.status(spec.name) is Status.ABSENT:
            note = self.units.intend(spec.masks, note)
            _make_folders(path.parent)
            write_note(path, note)
            self.units.mask(note)
        if not spec.files:
            installer.install(spec.name)
            return
        fitting = _fitting(spec, installer)
        with carried.unpacked(fitting, installer.suffix, machine) as (folder, packages):
            installer.install_carried(spec.name, packages, folder)
        if note is not None:
            write_note(path, replace(note, carried=carried.digests(fitting)))


def _spec(resource: Resource) -> resources.Package:
    assert isinstance(resource.spec, resources.Package)
    return resource.spec


def _fitting(spec: resources.Package, installer: Installer) -> tuple[FromBlob, ...]:
    return carried.fitting(spec.files, installer.suffix, installer.architectures()) if spec.files else ()


def _note_path(machine: Machine, name: str) -> Path:
    return machine.state / "run" / "packages" / f"{name}.json"


def _make_folders(folder: Path) -> None:
    for path in (folder.parent, folder):
        directories.make(path, mode=0o700, uid=os.geteuid(), gid=os.getegid())
