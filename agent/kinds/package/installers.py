"""Which package manager this machine's packages are installed with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agent.errors import Refused
from agent.host import commands, machine
from agent.host.machine import Distribution
from agent.kinds.package.apk import Apk
from agent.kinds.package.apt import Apt
from agent.kinds.package.dnf import Dnf
from agent.kinds.package.installer import Installer
from agent.kinds.package.zypper import Zypper


def _all() -> tuple[Installer, ...]:
    return (Apt(), Dnf(), Dnf(program="dnf5"), Dnf(program="microdnf"), Zypper(), Apk())


@dataclass(frozen=True, slots=True)
class Installers:
    """The package managers that are known here. `find` finds a program, `distribution` says what machine this is."""

    known: tuple[Installer, ...] = field(default_factory=_all)
    find: Callable[[str], str | None] = commands.find
    distribution: Callable[[], Distribution] = machine.distribution

    def choose(self) -> Installer:
        """The distribution's own, and of the others the first that is here; Refused when none is.

        That one is there says little: Debian has packages of dnf and zypper, Fedora one of apt.
        """
        here = [one for one in self.known if all(self.find(program) for program in one.programs)]
        if not here:
            names = ", ".join(dict.fromkeys(one.name for one in self.known))
            raise Refused(
                f"This machine has none of the package managers that packages are installed with ({names}); "
                "run the agent on a distribution that has one."
            )
        distribution = self.distribution()
        families = {distribution.id, *distribution.like}
        return next((one for one in here if families & one.families), here[0])
