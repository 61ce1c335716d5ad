"""Alpine's packages: what is asked of apk, and how its answers read.

- Carried files become a repository of their own for one installation: apk takes of them what the package requires, and
  what is not older than the installed; the machine's list of wanted packages names the package as if it came from a
  repository, not pinned to one file.
- No daemon is started or enabled by an installation: OpenRC's services run when somebody adds them to a runlevel.
- apk ends with the number of its errors, 99 where its database can't be opened, as when another program holds its lock,
  for which it waits (`--wait`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Refused
from agent.host import commands
from agent.host.commands import CommandFailed, Finished
from agent.host.failures import in_words
from agent.kinds.package import locks
from agent.kinds.package.installer import (
    INSTALL_SECONDS,
    LOCK_SECONDS,
    Failure,
    Run,
    Signs,
    Status,
    Trouble,
    Words,
    lines,
    not_carried,
    not_from_files,
    not_installed,
    read_failure,
)

_NETWORK = "could not connect|[Cc]onnection|DNS|[Nn]etwork|temporary error|timed out|TLS"
_SIGNS: Signs = (
    (Trouble.LOCKED, re.compile("^ERROR: Unable to lock database: (Interrupted|temporary|Resource)")),
    (Trouble.OUTDATED, re.compile("mentioned in index not found")),
    # A repository that can't be reached is left out, so that the package isn't found either.
    (Trouble.UNREACHABLE, re.compile(f"^(WARNING|ERROR): .*: .*({_NETWORK})")),
    # What only another package requires is not what was asked for.
    (Trouble.UNKNOWN, re.compile(r"^required by: world\[")),
    (Trouble.OTHER, re.compile(r"^\S+ \(no such package\):")),
    (Trouble.OTHER, re.compile("^ERROR: ")),
)
_WORDS = Words("apk", "the repositories in /etc/apk/repositories", "apk search -e")


@dataclass(frozen=True, slots=True)
class Header:
    """What a package file says of itself."""

    name: str
    version: str
    architecture: str


@dataclass(frozen=True, slots=True)
class Apk:
    """apk of this machine. `patience`: how long another program may hold its lock, in seconds."""

    run: Run = commands.run
    database: Path = Path("/lib/apk/db")
    patience: float = LOCK_SECONDS

    name = "apk"
    families = frozenset({"alpine", "postmarketos", "wolfi", "chainguard"})
    programs = ("apk",)
    suffix = ".apk"
    starts_daemons = False

    def architectures(self) -> frozenset[str]:
        return frozenset({self._architecture(), "noarch"})

    def status(self, name: str) -> Status:
        argv = ["apk", "info", "--installed", name]
        finished = self.run(argv, check=False)
        if b"ERROR: " in finished.stderr:
            raise CommandFailed(argv, f"failed: {read(finished).line}", finished)
        return Status.INSTALLED if name in lines(finished) else Status.ABSENT

    def install(self, name: str) -> None:
        finished = self._add(name)
        if finished.code and read(finished).trouble in (Trouble.UNKNOWN, Trouble.OUTDATED):
            finished = self._add(name, "--update-cache")
        if finished.code:
            raise _WORDS.failed(name, finished, read(finished))
        self._require(name)

    def install_carried(self, name: str, packages: Sequence[Path], folder: Path) -> None:
        architecture = self._architecture()
        shelf = folder / "repository" / architecture
        with in_words("Sorting package files in", folder):
            shelf.mkdir(parents=True)
            # An index says of each package under which architecture its file lies.
            (shelf.parent / "noarch").symlink_to(architecture)
        names = set()
        for path in packages:
            header = read_header(path)
            if header.architecture in (architecture, "noarch"):
                names.add(header.name)
                with in_words("Sorting package files in", folder):
                    path.rename(shelf / f"{header.name}-{header.version}.apk")
        if name not in names:
            raise not_carried(name)
        listed = sorted(str(path) for path in shelf.iterdir())
        index = str(shelf / "APKINDEX.tar.gz")
        self.run(["apk", "index", "--allow-untrusted", "--no-warnings", "--output", index, *listed], timeout=600.0)
        only = ("--no-network", "--no-cache", "--allow-untrusted", "--repositories-file", "/dev/null")
        finished = self._add(name, "--upgrade", *only, "--repository", str(shelf.parent))
        if finished.code:
            raise not_from_files(name, read(finished))
        self._require(name)

    def wait_for_lock(self) -> None:
        locks.wait((self.database / "lock",), self.patience, locks.whole)

    def alone(self) -> AbstractContextManager[None]:
        return locks.alone(self.database, self.patience)

    def removal(self, name: str) -> str:
        return f"apk del {name}"

    def _architecture(self) -> str:
        return self.run(["apk", "--print-arch"]).stdout.decode(errors="replace").strip()

    def _add(self, name: str, *options: str) -> Finished:
        argv = ["apk", "add", "--no-progress", "--wait", f"{self.patience:.0f}", *options, name]
        return self.run(argv, timeout=INSTALL_SECONDS, check=False)

    def _require(self, name: str) -> None:
        if self.status(name) is Status.ABSENT:
            raise not_installed("apk", name, f"apk info --who-owns {name}")


def read_header(path: Path) -> Header:
    """Name, version and architecture of a package file; Refused when it is none that can be read.

    A file is several gzip streams, whose tars make one: signatures first, then `.PKGINFO` (apk-package(5), version 2).
    """
    import tarfile

    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if member.name == ".PKGINFO":
                    stream = archive.extractfile(member)
                    assert stream is not None
                    return parse_header(stream.read().decode(errors="replace"))
    except (OSError, EOFError, tarfile.TarError, KeyError) as error:
        raise Refused(f"A carried .apk file can't be read ({error}); carry it as `apk fetch` has it.") from error
    raise Refused("A carried .apk file doesn't say what it holds; carry it as `apk fetch` has it.")


def parse_header(text: str) -> Header:
    """The values of a .PKGINFO; KeyError when one is missing."""
    values = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    return Header(values["pkgname"], values["pkgver"], values["arch"])


def read(finished: Finished) -> Failure:
    """What apk's words mean when it failed."""
    return read_failure(finished, _SIGNS)
