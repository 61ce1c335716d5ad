from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import Refused
from agent.host.machine import Distribution
from agent.kinds.kind import Machine
from agent.kinds.package import Package
from agent.kinds.package.installers import Installers
from agent.resources import specs

APT = ("apt-get", "apt-cache", "dpkg", "dpkg-deb", "dpkg-query")


def chosen(distribution: Distribution, *programs: str) -> str:
    found = Installers(find=lambda name: name if name in programs else None, distribution=lambda: distribution)
    return found.choose().programs[0]


def of(id: str, *like: str) -> Distribution:
    return Distribution(id, like, "1", id)


@pytest.mark.parametrize(
    ("distribution", "programs", "program"),
    [
        (of("debian"), APT, "apt-get"),
        (of("ubuntu", "debian"), (*APT, "rpm", "dnf", "zypper"), "apt-get"),
        (of("linuxmint", "ubuntu", "debian"), (*APT, "rpm", "dnf"), "apt-get"),
        (of("fedora"), (*APT, "rpm", "dnf", "dnf5", "zypper"), "dnf"),
        (of("almalinux", "rhel", "centos", "fedora"), ("rpm", "microdnf"), "microdnf"),
        (of("fedora"), ("rpm", "dnf5"), "dnf5"),
        (of("opensuse-leap", "suse", "opensuse"), ("rpm", "dnf", "zypper"), "zypper"),
        (of("alpine"), ("apk",), "apk"),
        (of("something"), ("rpm", "zypper"), "zypper"),
        # dnf without rpm does nothing.
        (of("fedora"), (*APT, "dnf"), "apt-get"),
    ],
)
def test_the_distribution_s_own_is_chosen(distribution: Distribution, programs: tuple[str, ...], program: str) -> None:
    assert chosen(distribution, *programs) == program


def test_a_machine_without_any_is_refused_before_it_is_touched() -> None:
    kind = Package(Installers(find=lambda name: None, distribution=lambda: of("linux")))
    with pytest.raises(
        Refused, match=r"none of the package managers .* \(apt, dnf, zypper, apk\); run the agent on a dis"
    ):
        kind.check(specs.Package("app", ()), Machine(Path("/nowhere"), b"", lambda name: iter(())), ())
