"""Debian's packages: what is asked of dpkg and apt, and, apart from it, how their answers read.

- Carried files become a source of apt's own for one installation: of them it takes what the package requires and the
  machine lacks, in the right order, and never an older version than the installed one.
- What an installation that was cut short has left, of whichever package, is repaired by the next one.
- Nothing is done while another program holds dpkg's lock; who holds it is named.
- A package's script starts its daemon (invoke-rc.d(8)) unless policy-rc.d says no, as it does meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from agent.host import commands, files
from agent.host.commands import CommandFailed, Finished
from agent.host.failures import in_words
from agent.kinds.package import locks
from agent.kinds.package.installer import (
    INSTALL_SECONDS,
    LOCK_SECONDS,
    REFRESH_SECONDS,
    Failure,
    Run,
    Signs,
    Status,
    Trouble,
    Words,
    not_carried,
    not_from_files,
    not_installed,
    read_failure,
)

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
_WORDS = Words("apt", "the sources in /etc/apt", "apt-cache policy")
_SIGNS: Signs = (
    (Trouble.OTHER, re.compile("^dpkg: error")),
    (Trouble.OUTDATED, re.compile(r"^[WE]: .*(\b404\b|Failed to fetch|Unable to fetch|Hash Sum mismatch)")),
    (Trouble.OTHER, re.compile(r"^\S+ : (Pre)?Depends: ")),
    (Trouble.OTHER, re.compile("^E: ")),
)
# `apt-get update` ends with 0 when it could reach no source at all.
_FETCH_SIGNS: Signs = ((Trouble.UNREACHABLE, re.compile("^[WE]: Failed to fetch ")),)


@dataclass(frozen=True, slots=True)
class Apt:
    """apt and dpkg of this machine. `patience`: how long another program may hold dpkg's lock, in seconds."""

    run: Run = commands.run
    database: Path = Path("/var/lib/dpkg")
    patience: float = LOCK_SECONDS

    name = "apt"
    families = frozenset({"debian", "ubuntu"})
    programs = ("apt-get", "apt-cache", "dpkg", "dpkg-deb", "dpkg-query")
    suffix = ".deb"
    starts_daemons = True

    def architectures(self) -> frozenset[str]:
        return frozenset({self.run(["dpkg", "--print-architecture"]).stdout.decode(errors="replace").strip(), "all"})

    def status(self, name: str) -> Status:
        argv = ["dpkg-query", "-W", "-f", "${db:Status-Status}\\n", name]
        answer = self.run(argv, check=False)
        # dpkg-query(1): 1 is "no such package", 2 a database that can't be read
        if answer.code not in (0, 1):
            raise CommandFailed(argv, f"failed: {read(answer).line}", answer)
        return parse_status(answer.stdout.decode(errors="replace"))

    def install(self, name: str) -> None:
        more = self._repair()
        if self.status(name) is Status.INSTALLED:
            return
        if self._candidate(name) is None:
            updated = self._update()
            if self._candidate(name) is None:
                raise _WORDS.failed(name, updated, read_update(updated))
        argv = ["apt-get", "install", *_OPTIONS, *more, name]
        try:
            self._change(argv)
        except CommandFailed as error:
            if error.finished is None or read(error.finished).trouble is not Trouble.OUTDATED:
                raise
            self._update()
            self._change(argv)
        self._require(name)

    def install_carried(self, name: str, packages: Sequence[Path], folder: Path) -> None:
        source = self._shelve(packages, folder)
        self._change(["apt-get", *source, "update", "-q"], timeout=REFRESH_SECONDS)
        if self._candidate(name, source) is None:
            raise not_carried(name)
        more = self._repair(*source)
        finished = self._run(["apt-get", *source, "install", *_OPTIONS, *more, name])
        if finished.code != 0:
            raise not_from_files(name, read(finished))
        self._require(name)

    def wait_for_lock(self) -> None:
        locks.wait((self.database / "lock-frontend", self.database / "lock"), self.patience)

    def alone(self) -> AbstractContextManager[None]:
        return locks.alone(self.database, self.patience)

    def removal(self, name: str) -> str:
        return f"apt-get remove {name}"

    def _repair(self, *source: str) -> tuple[str, ...]:
        """Finish what an installation that was cut short has left; the option that the next one needs to go on.

        What can't be finished yet, because it lacks something that was yet to be unpacked, is no failure here.
        """
        if not self.run(["dpkg", "--audit"], check=False).stdout.strip():
            return ()
        self._run(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])
        flags = self.run(["dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Eflag}\\n"]).stdout
        half_installed = parse_half_installed(flags.decode(errors="replace"))
        if half_installed:
            # apt takes one whose unpacking was cut short for installed.
            self._run(["apt-get", *source, "install", *_OPTIONS, "--fix-broken", "--reinstall", *half_installed])
        return ("--fix-broken",)

    def _shelve(self, packages: Sequence[Path], folder: Path) -> tuple[str, ...]:
        """The options by which these files are all that apt knows of beside what is installed."""
        entries = []
        for path in packages:
            control = self.run(["dpkg-deb", "--field", str(path)]).stdout.strip()
            digest = hashlib.sha256()
            for chunk in files.chunks(path, uid=os.geteuid()):
                digest.update(chunk)
            place = f"Filename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {digest.hexdigest()}\n"
            entries.append(control + b"\n" + place.encode())
        with in_words("Writing into", folder):
            (folder / "Packages").write_bytes(b"\n".join(entries))
            (folder / "sources.list").write_text(f"deb [trusted=yes] {folder.as_uri()} ./\n")
            for name in ("lists/partial", "cache/archives/partial"):
                (folder / name).mkdir(parents=True)
        settings = {
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": folder / "lists",
            "Dir::Cache": folder / "cache",
            "Acquire::Languages": "none",
            "APT::Default-Release": "",  # The machine's own names a release that isn't among these.
            "APT::Sandbox::User": "root",  # Nobody else gets into the folder.
        }
        return tuple(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))

    def _candidate(self, name: str, source: Sequence[str] = ()) -> str | None:
        answer = self.run(["apt-cache", *source, "policy", name])
        return parse_candidate(answer.stdout.decode(errors="replace"))

    def _update(self) -> Finished:
        return self._change(["apt-get", "update", "-q"], timeout=REFRESH_SECONDS)

    def _change(self, argv: Sequence[str], timeout: float = INSTALL_SECONDS) -> Finished:
        finished = self._run(argv, timeout)
        if finished.code != 0:
            reason = f"failed with exit status {finished.code}: {read(finished).line}"
            raise CommandFailed(argv, reason, finished)
        return finished

    def _run(self, argv: Sequence[str], timeout: float = INSTALL_SECONDS) -> Finished:
        return self.run(argv, environment=_QUIET, timeout=timeout, check=False)

    def _require(self, name: str) -> None:
        if self.status(name) is not Status.INSTALLED:
            raise not_installed("apt-get", name, f"dpkg -s {name}")


def parse_status(text: str) -> Status:
    """The answer of dpkg-query, one word a line and architecture, as one status."""
    words = set(text.split()) - {"not-installed", "config-files"}
    if not words:
        return Status.ABSENT
    # A package that only waits for another's trigger does its work (deb-triggers(5)).
    return Status.INSTALLED if "installed" in words or "triggers-awaited" in words else Status.INTERRUPTED


def parse_half_installed(text: str) -> tuple[str, ...]:
    """The packages that have to be unpacked again, from dpkg-query's names with their error flags (dpkg(1))."""
    rows = (line.split() for line in text.splitlines())
    return tuple(row[0] for row in rows if row[1:] == ["reinstreq"])


def parse_candidate(text: str) -> str | None:
    """The version that apt would install, from `apt-cache policy NAME`; None when there is none."""
    match = re.search(r"^ +Candidate: (\S+)$", text, re.MULTILINE)
    return None if match is None or match[1] == "(none)" else match[1]


def read_update(updated: Finished) -> Failure:
    """Why lists that were just fetched don't know a package: some source couldn't be reached, or none has it."""
    failure = read_failure(updated, _FETCH_SIGNS)
    return failure if failure.trouble is Trouble.UNREACHABLE else Failure(Trouble.UNKNOWN, "")


def read(finished: Finished) -> Failure:
    """What apt's or dpkg's words mean when it failed: dpkg's own error comes before apt's."""
    return read_failure(finished, _SIGNS)
