"""Fedora's packages, and those of what derives from it: what is asked of dnf, and how its answers read.

dnf 4, dnf 5 and microdnf take the same words here and end with 0, or with 1 for whatever went wrong (dnf 4 with 200
where another program holds its lock for too long: it waits by itself). They fetch their lists anew by age.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.host.commands import Finished
from agent.kinds.package.installer import (
    INSTALL_SECONDS,
    Failure,
    Signs,
    Status,
    Trouble,
    Words,
    not_installed,
    read_failure,
)
from agent.kinds.package.rpm import Rpm

_OPTIONS = ("-y", "--setopt=install_weak_deps=False")
_LOCKED = 200
_SIGNS: Signs = (
    (Trouble.LOCKED, re.compile("Failed to obtain .* lock")),
    (Trouble.OTHER, re.compile("scriptlet failed|script failed")),
    (Trouble.UNREACHABLE, re.compile("There are no enabled repositories")),
    (Trouble.OUTDATED, re.compile(r"Status code: 404 for \S+\.rpm|[Cc]hecksum doesn't match")),
    # A repository that can't be reached is left out, so that the package isn't found either.
    (Trouble.UNREACHABLE, re.compile("Curl error")),
    (Trouble.UNREACHABLE, re.compile("Failed to download metadata|All mirrors were tried|Usable URL not found")),
    (Trouble.UNKNOWN, re.compile("No match for argument|Unable to find a match|No package matches")),
    (Trouble.OTHER, re.compile("nothing provides|conflicts with|cannot install")),
    (Trouble.OTHER, re.compile(r"^Error: .|\berror: ")),
)


@dataclass(frozen=True, slots=True)
class Dnf(Rpm):
    """dnf of this machine; `program` is its command."""

    program: str = "dnf"

    name = "dnf"
    families = frozenset({"fedora", "rhel", "centos", "amzn", "mariner", "azurelinux"})

    @property
    def programs(self) -> tuple[str, ...]:
        return (self.program, "rpm")

    def install(self, name: str) -> None:
        finished = self._try(name)
        if finished.code and read(finished).trouble in (Trouble.UNKNOWN, Trouble.OUTDATED):
            finished = self._try(name, "--refresh")
        if finished.code:
            raise self._words.failed(name, finished, read(finished))
        if self.status(name) is Status.ABSENT:
            raise not_installed(self.program, name, f"rpm -q --whatprovides {name}")

    def removal(self, name: str) -> str:
        return f"{self.program} remove {name}"

    @property
    def _words(self) -> Words:
        return Words(self.program, "the repositories in /etc/yum.repos.d", f"{self.program} repoquery")

    def _try(self, name: str, *more: str) -> Finished:
        return self.run([self.program, *_OPTIONS, *more, "install", name], timeout=INSTALL_SECONDS, check=False)


def read(finished: Finished) -> Failure:
    """What dnf's words mean when it failed."""
    failure = read_failure(finished, _SIGNS)
    return Failure(Trouble.LOCKED, failure.line) if finished.code == _LOCKED else failure
