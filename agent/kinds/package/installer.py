"""What a distribution's package manager is to the kind: asked what is installed, and told to install.

Of each there is one file, in which the command to ask lies apart from how its answer reads. All of them uphold:

- No question is asked, no recommended package is added, no other package removed, no configuration replaced.
- Lists of packages are fetched anew only when those that are here don't know a package or are outdated.
- What goes wrong is told apart: a package that nobody knows, a source that can't be reached, a lock that another
  program holds, and the rest in the words of the package manager.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from agent.errors import Refused, Unavailable
from agent.host.commands import CommandFailed, Finished

INSTALL_SECONDS = 3600.0
REFRESH_SECONDS = 600.0
LOCK_SECONDS = 60.0
"""How long another program may hold the package manager's lock."""

_LINE_LENGTH = 300


class Status(Enum):
    """What is known of a package; INTERRUPTED when unpacking or configuring it was cut short."""

    ABSENT = "absent"
    INTERRUPTED = "interrupted"
    INSTALLED = "installed"


class Trouble(Enum):
    """Why an installation failed, by what is to be done about it."""

    UNKNOWN = "no source has such a package"
    OUTDATED = "the lists of packages no longer fit what the source holds"
    UNREACHABLE = "a source can't be reached, or there is none"
    LOCKED = "another program is changing packages"
    OTHER = "something else"


class Run(Protocol):
    """Runs another program to its end, as `agent.host.commands.run` does."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        check: bool = True,
    ) -> Finished: ...


class Installer(Protocol):
    """One package manager."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def families(self) -> frozenset[str]:
        """The distributions whose own it is, by their ids in os-release(5); derived ones name them there."""

    @property
    def programs(self) -> tuple[str, ...]:
        """All that it needs on PATH."""

    @property
    def suffix(self) -> str:
        """How the names of its package files end: `.deb`."""

    @property
    def starts_daemons(self) -> bool:
        """Whether its packages start their daemons while they are installed, unless a policy-rc.d says no."""

    def architectures(self) -> frozenset[str]:
        """What its package files call this machine's architecture, and those for any."""

    def status(self, name: str) -> Status:
        """How far this package is installed. Unavailable when that can't be told."""

    def install(self, name: str) -> None:
        """Install it from the machine's sources, or finish what was cut short."""

    def install_carried(self, name: str, packages: Sequence[Path], folder: Path) -> None:
        """Install it, or a newer version of it, from these files and no source, with what it requires of them.

        It is one transaction, and what is installed in the same version or a newer one stays. `folder`, where the files
        lie, is private and goes afterwards. Refused when the package is not among them.
        """

    def wait_for_lock(self) -> None:
        """Return when no other program is changing packages; Unavailable, naming it, when one goes on."""

    def alone(self) -> AbstractContextManager[None]:
        """Keep other agents, of other state folders, from installing at the same time."""

    def removal(self, name: str) -> str:
        """The command by which a person takes the package away."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a package manager failed: what sort of trouble, and the line in which it says so."""

    trouble: Trouble
    line: str


Signs = Sequence[tuple[Trouble, re.Pattern[str]]]
"""By which lines trouble is told, the most telling first."""


@dataclass(frozen=True, slots=True)
class Words:
    """What one package manager is called, and where a person looks on: `sources` and `ask` end sentences."""

    manager: str
    sources: str
    ask: str

    def failed(self, name: str, finished: Finished, failure: Failure) -> Unavailable:
        """The failed installation of the package `name` as a sentence."""
        line = failure.line.rstrip(".")
        if failure.trouble is Trouble.UNKNOWN:
            return Unavailable(
                f"{self.manager} knows no package {name} that could be installed; "
                f"see `{self.ask} {name}` and {self.sources}."
            )
        if failure.trouble is Trouble.UNREACHABLE:
            return Unavailable(
                f"The package {name} can't be installed, because {self.manager} can't reach where packages come from: "
                f"{line}; see the network and {self.sources}, or carry the package's files."
            )
        if failure.trouble is Trouble.LOCKED:
            return Unavailable(f"Packages can't be installed now: {line}; wait for it to end.")
        return CommandFailed(finished.argv, f"failed with exit status {finished.code}: {failure.line}", finished)


def lines(finished: Finished) -> list[str]:
    """What a program said, errors before the rest, without empty lines."""
    text = (finished.stderr + b"\n" + finished.stdout).decode(errors="replace")
    printable = ("".join(filter(str.isprintable, line)).strip() for line in text.splitlines())
    return [line for line in printable if line]


def read_failure(finished: Finished, signs: Signs) -> Failure:
    """What a program's words mean: the first sign that any line shows; without one, its last line.

    A line that ends with a colon announces the next one, which is added. At most 300 characters are shown.
    """
    said = lines(finished)
    for trouble, sign in signs:
        for at, line in enumerate(said):
            if sign.search(line):
                return Failure(trouble, " ".join(said[at : at + 2] if line.endswith(":") else [line])[:_LINE_LENGTH])
    return Failure(Trouble.OTHER, said[-1][:_LINE_LENGTH] if said else "it said nothing.")


def not_carried(name: str) -> Refused:
    """None of the files that fit this machine is the package's own."""
    return Refused(
        f"The files that are carried for the package {name} hold what it requires at most, and not {name} itself for "
        "this machine; add it to the package's `files`."
    )


def not_from_files(name: str, failure: Failure) -> Unavailable:
    """The package manager didn't take the carried files; the command is of no use to a person, the files are gone."""
    return Unavailable(f"The package {name} can't be installed from the files carried for it: {failure.line}")


def not_installed(manager: str, name: str, ask: str) -> Unavailable:
    """All went well, and yet the package isn't there: another one provides what was asked for."""
    return Unavailable(f"{manager} is done, but {name} is not installed; see `{ask}`.")
