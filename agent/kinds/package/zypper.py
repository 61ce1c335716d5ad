"""SUSE's packages: what is asked of zypper, and how its answers read.

Its exit status (zypper(8)): 0, and 100 to 103 for hints beside success; 4 for a problem that it would have asked about;
7 when another program holds its lock, for which it waits as long as ZYPP_LOCK_TIMEOUT says; 8 when rpm failed; 104 for
a name that nothing has; 106 when some repository was left out; 107 when all was installed and a script of a package
failed. So after 106 and 107 the package itself decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.host.commands import Finished
from agent.kinds.package.installer import (
    INSTALL_SECONDS,
    REFRESH_SECONDS,
    Failure,
    Signs,
    Status,
    Trouble,
    Words,
    not_installed,
    read_failure,
)
from agent.kinds.package.rpm import Rpm

_FINE = frozenset({0, 100, 101, 102, 103, 106, 107})
_SIGNS: Signs = (
    (Trouble.LOCKED, re.compile("^System management is locked")),
    (Trouble.OTHER, re.compile("^error: ")),
    (Trouble.OUTDATED, re.compile(r"^File '.*\.rpm' not found on medium")),
    # A repository that can't be reached is left out, so that the package isn't found either.
    (Trouble.UNREACHABLE, re.compile("^Error message: ")),
    (Trouble.UNREACHABLE, re.compile("No repositories defined")),
    (Trouble.UNREACHABLE, re.compile("^Repository '.*' is invalid|not been refreshed because of an error")),
    (Trouble.UNKNOWN, re.compile("^No provider of ")),
    (Trouble.OTHER, re.compile("^Problem: ")),
)
_WORDS = Words("zypper", "the repositories that `zypper repos` lists", "zypper search")


@dataclass(frozen=True, slots=True)
class Zypper(Rpm):
    """zypper of this machine."""

    name = "zypper"
    families = frozenset({"suse", "opensuse", "sles"})
    programs = ("zypper", "rpm")

    def install(self, name: str) -> None:
        finished = self._install(name)
        if finished.code not in _FINE and read(finished).trouble in (Trouble.UNKNOWN, Trouble.OUTDATED):
            # Where a repository is fetched anew only by command, its list may be an old one.
            self._zypper("refresh", seconds=REFRESH_SECONDS)
            finished = self._install(name)
        if finished.code not in _FINE:
            raise _WORDS.failed(name, finished, read(finished))
        if self.status(name) is Status.ABSENT:
            raise not_installed("zypper", name, f"rpm -q --whatprovides {name}")

    def removal(self, name: str) -> str:
        return f"zypper remove {name}"

    def _install(self, name: str) -> Finished:
        return self._zypper("install", "--no-recommends", name, seconds=INSTALL_SECONDS)

    def _zypper(self, *words: str, seconds: float) -> Finished:
        environment = {"ZYPP_LOCK_TIMEOUT": f"{self.patience:.0f}"}
        return self.run(["zypper", "--non-interactive", *words], environment=environment, timeout=seconds, check=False)


def read(finished: Finished) -> Failure:
    """What zypper's words mean, or rpm's through it, when it failed."""
    return read_failure(finished, _SIGNS)
