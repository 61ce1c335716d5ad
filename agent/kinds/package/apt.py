"""Debian's packages: what is asked of dpkg and apt, and, apart from it, how their answers read.

- An installation asks no question, removes no other package and replaces no configuration file.
- Nothing is done while another program holds dpkg's lock; who holds it is named.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from agent.errors import Unavailable
from agent.host import commands, processes
from agent.host.commands import CommandFailed, Finished
from agent.host.failures import in_words

PROGRAMS = ("apt-get", "apt-cache", "dpkg", "dpkg-query")

_QUIET = {
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",  # Ubuntu's needrestart would restart daemons of other packages.
}
_OPTIONS = (
    "-y",
    "--no-install-recommends",
    "--no-remove",
    *("-o", "DPkg::Lock::Timeout=60"),
    *("-o", "Dpkg::Use-Pty=0"),  # With a terminal of its own dpkg would outlive an apt-get that is ended.
    *("-o", "Dpkg::Options::=--force-confdef"),
    *("-o", "Dpkg::Options::=--force-confold"),
)
_INSTALL_SECONDS = 3600.0
_UPDATE_SECONDS = 600.0
_POLL = 0.2
_OUTDATED = re.compile(r"\b404\b|Failed to fetch|Unable to fetch|Hash Sum mismatch")


class Status(Enum):
    """What dpkg knows of a package; INTERRUPTED when unpacking or configuring it was cut short."""

    ABSENT = "absent"
    INTERRUPTED = "interrupted"
    INSTALLED = "installed"


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


@dataclass(frozen=True, slots=True)
class Apt:
    """apt and dpkg of this machine. `patience`: how long another program may hold dpkg's lock, in seconds."""

    run: Run = commands.run
    database: Path = Path("/var/lib/dpkg")
    patience: float = 60.0

    def status(self, name: str) -> Status:
        """How far this package is installed. Unavailable when dpkg can't tell."""
        argv = ["dpkg-query", "-W", "-f", "${db:Status-Status}\\n", name]
        answer = self.run(argv, check=False)
        if answer.code not in (
            0,
            1,
        ):  # dpkg-query(1): 1 is "no such package", 2 a database that can't be read
            raise CommandFailed(argv, f"failed: {complaint(answer)}", answer)
        return parse_status(answer.stdout.decode(errors="replace"))

    def install(self, name: str) -> None:
        """Install it, fetching the lists of packages anew where they don't know it or are outdated."""
        if self._candidate(name) is None:
            self._update()
            if self._candidate(name) is None:
                raise Unavailable(
                    f"apt knows no package {name} that could be installed; "
                    f"see `apt-cache policy {name}` and the sources in /etc/apt."
                )
        try:
            self._change(["apt-get", "install", *_OPTIONS, name])
        except CommandFailed as error:
            if error.finished is None or not is_outdated(error.finished):
                raise
            self._update()
            self._change(["apt-get", "install", *_OPTIONS, name])
        if self.status(name) is not Status.INSTALLED:
            raise Unavailable(f"apt-get is done, but {name} is not installed; see `dpkg -s {name}`.")

    def finish_interrupted(self) -> None:
        """Configure whatever was unpacked when an earlier installation was cut short."""
        self._change(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])

    def wait_for_lock(self) -> None:
        """Return when no other program is changing packages; Unavailable, naming it, when one goes on."""
        deadline = time.monotonic() + self.patience
        for path in (self.database / "lock-frontend", self.database / "lock"):
            while not _is_free(path):
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"Packages can't be installed now: {_holder(path)} holds {path}; wait for it to end."
                    )
                time.sleep(_POLL)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other agents, of other state folders, from installing at the same time."""
        deadline = time.monotonic() + self.patience
        with in_words("Locking", self.database):
            # Of the directory itself, which dpkg doesn't lock: nothing needs to be made for it.
            descriptor = os.open(self.database, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= deadline:
                        raise Unavailable(
                            "Another agent on this machine is installing packages; wait for it to end."
                        ) from error
                time.sleep(_POLL)
            yield
        finally:
            os.close(descriptor)

    def _candidate(self, name: str) -> str | None:
        return parse_candidate(self.run(["apt-cache", "policy", name]).stdout.decode(errors="replace"))

    def _update(self) -> None:
        self._change(["apt-get", "update", "-q"], timeout=_UPDATE_SECONDS)

    def _change(self, argv: Sequence[str], timeout: float = _INSTALL_SECONDS) -> None:
        finished = self.run(argv, environment=_QUIET, timeout=timeout, check=False)
        if finished.code != 0:
            reason = f"failed with exit status {finished.code}: {complaint(finished)}"
            raise CommandFailed(argv, reason, finished)


def parse_status(text: str) -> Status:
    """The answer of dpkg-query, one word a line and architecture, as one status."""
    words = set(text.split()) - {"not-installed", "config-files"}
    if not words:
        return Status.ABSENT
    # A package that only waits for another's trigger does its work (deb-triggers(5)).
    return Status.INSTALLED if "installed" in words or "triggers-awaited" in words else Status.INTERRUPTED


def parse_candidate(text: str) -> str | None:
    """The version that apt would install, from `apt-cache policy NAME`; None when there is none."""
    match = re.search(r"^ +Candidate: (\S+)$", text, re.MULTILINE)
    return None if match is None or match[1] == "(none)" else match[1]


def is_outdated(finished: Finished) -> bool:
    """Whether an installation failed because the lists of packages no longer fit what the archive holds."""
    return _OUTDATED.search((finished.stderr + finished.stdout).decode(errors="replace")) is not None


def complaint(finished: Finished) -> str:
    """The line that says why apt or dpkg failed: dpkg's own error before apt's first."""
    lines = [
        line.strip()
        for line in (finished.stderr + b"\n" + finished.stdout).decode(errors="replace").splitlines()
        if line.strip()
    ]
    for at, line in enumerate(lines):
        if line.startswith("dpkg: error"):
            return " ".join(lines[at : at + 2] if line.endswith(":") else [line])
    errors = [line for line in lines if line.startswith("E: ")]
    return (errors or lines[-1:] or ["it said nothing."])[0]


def parse_lock_holder(text: str, inode: int) -> int | None:
    """The pid that holds a lock on the file of this inode, from the text of /proc/locks (proc(5))."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] != "->" and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def _is_free(path: Path) -> bool:
    with in_words("Looking at", path):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # fcntl(2): EAGAIN or EACCES
            return False
        finally:
            os.close(descriptor)
        return True


def _holder(path: Path) -> str:
    try:
        pid = parse_lock_holder(Path("/proc/locks").read_text("ascii"), path.stat().st_ino)
    except OSError:
        pid = None
    return "another program" if pid is None else f"process {pid} ({processes.command(pid)})"
