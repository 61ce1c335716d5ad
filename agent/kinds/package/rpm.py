"""rpm, which dnf and zypper stand on: what is installed, and package files that are put in without either of them.

- Files go in by rpm itself, in one transaction that it orders, because it asks no repository. It takes all that it is
  given, so it is given only what is newer than what is installed: nothing is downgraded.
- Whether a file is what its author made is known from the bundle's digests; no signature of a distribution's is asked.
- A package's script starts no daemon (systemd's presets decide what is enabled, and nothing is started by them).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Unavailable
from agent.host import commands
from agent.host.commands import CommandFailed, Finished
from agent.kinds.package import locks
from agent.kinds.package.installer import (
    INSTALL_SECONDS,
    LOCK_SECONDS,
    Failure,
    Run,
    Signs,
    Status,
    Trouble,
    not_carried,
    not_from_files,
    not_installed,
    read_failure,
)

_FORM = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\n"
_NOT_INSTALLED = re.compile(r"^package \S+ is not installed$", re.MULTILINE)
_SIGNS: Signs = (
    (Trouble.OTHER, re.compile("^error: Failed dependencies:")),
    (Trouble.OTHER, re.compile("^error: ")),
    (Trouble.OTHER, re.compile("is already installed$")),
)


@dataclass(frozen=True, slots=True)
class Edition:
    """One package, installed or in a file; `version` is epoch, version and release."""

    name: str
    version: tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Rpm:
    """What dnf and zypper have in common. `patience`: how long another program may hold rpm's lock, in seconds.

    `database` is the folder of what is installed; None: where rpm itself says that it is.
    """

    run: Run = commands.run
    database: Path | None = None
    patience: float = LOCK_SECONDS

    suffix = ".rpm"
    starts_daemons = False

    def architectures(self) -> frozenset[str]:
        return frozenset({self._evaluate("%{_arch}"), "noarch"})

    def status(self, name: str) -> Status:
        return Status.INSTALLED if self._installed(name) else Status.ABSENT

    def install_carried(self, name: str, packages: Sequence[Path], folder: Path) -> None:
        carried = [(self._read(path), path) for path in packages]
        if name not in {package.name for package, _ in carried}:
            raise not_carried(name)
        newer = self._newer(carried)
        if newer:
            argv = ["rpm", "--upgrade", "--nosignature", *map(str, newer)]
            finished = self.run(argv, timeout=INSTALL_SECONDS, check=False)
            if finished.code != 0:
                raise not_from_files(name, read(finished))
        if self.status(name) is Status.ABSENT:
            raise not_installed("rpm", name, f"rpm -q {name}")

    def wait_for_lock(self) -> None:
        locks.wait((self._folder() / ".rpm.lock",), self.patience)

    def alone(self) -> AbstractContextManager[None]:
        return locks.alone(self._folder(), self.patience)

    def _folder(self) -> Path:
        return self.database or Path(self._evaluate("%{_dbpath}"))

    def _evaluate(self, text: str) -> str:
        return self.run(["rpm", "--eval", text]).stdout.decode(errors="replace").strip()

    def _installed(self, name: str) -> list[Edition]:
        argv = ["rpm", "-q", "--queryformat", _FORM, name]
        finished = self.run(argv, check=False)
        text = finished.stdout.decode(errors="replace")
        if finished.code != 0 and not _NOT_INSTALLED.search(text):
            raise CommandFailed(argv, f"failed: {read(finished).line}", finished)
        return parse_editions(text)

    def _read(self, path: Path) -> Edition:
        argv = ["rpm", "-q", "--nosignature", "--queryformat", _FORM, "--package", str(path)]
        found = parse_editions(self.run(argv).stdout.decode(errors="replace"))
        if len(found) != 1:
            raise Unavailable(f"{path} is no package that rpm can read.")
        return found[0]

    def _newer(self, carried: Sequence[tuple[Edition, Path]]) -> list[Path]:
        """The newest file of each package, where none that is installed is as new."""
        best: dict[str, tuple[Edition, Path]] = {}
        for package, path in carried:
            if package.name not in best or self._compare(package, best[package.name][0]) > 0:
                best[package.name] = package, path
        return [
            path
            for package, path in best.values()
            if all(self._compare(package, there) > 0 for there in self._installed(package.name))
        ]

    def _compare(self, one: Edition, other: Edition) -> int:
        """Above 0 when `one` is newer, as rpm sees it: part by part, since older rpms compare no more at once."""
        pairs = zip(one.version, other.version, strict=True)
        script = "".join(f"print(rpm.vercmp('{mine}','{theirs}')..' ')" for mine, theirs in pairs)
        results = (int(word) for word in self._evaluate(f"%{{lua:{script}}}").split())
        return next((result for result in results if result), 0)


def parse_editions(text: str) -> list[Edition]:
    """What `rpm -q` answers in our form, one package a line; other lines say that something is not installed."""
    rows = [line.split("\t") for line in text.splitlines()]
    return [Edition(row[0], (row[1], row[2], row[3])) for row in rows if len(row) == 4]


def read(finished: Finished) -> Failure:
    """What rpm's words mean when it failed."""
    return read_failure(finished, _SIGNS)
