"""What this machine is: the facts of a node's profile, and what its kinds ask before they touch anything."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path

from agent.host import commands
from agent.host.failures import in_words

# Addresses of the documentation ranges (RFC 5737, RFC 3849): nobody's, so only a default route leads there.
_FAR_AWAY = ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1"))
_ENGINES = ("podman", "docker")


@dataclass(frozen=True, slots=True)
class Distribution:
    """os-release(5): `id` ("debian"), `like` (ids it derives from), `version` ("12"), `title` for people."""

    id: str
    like: tuple[str, ...]
    version: str
    title: str


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. `cpus` are those this process may use, `address` is where others probably reach it.

    `ephemeral` are the first and the last port that outgoing connections use; None where the kernel doesn't tell.
    """

    architecture: str
    cpus: int
    memory_bytes: int
    kernel: str
    distribution: Distribution
    python: str
    engines: tuple[str, ...]
    systemd: bool
    address: str | None
    ephemeral: tuple[int, int] | None


def look() -> Machine:
    """The facts as they are now; nothing is sent anywhere."""
    system = os.uname()
    return Machine(
        architecture=system.machine,
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(),
        kernel=system.release,
        distribution=distribution(),
        python=platform.python_version(),
        engines=engines(),
        systemd=has_systemd(),
        address=primary_address(),
        ephemeral=ephemeral_ports(),
    )


def memory_bytes() -> int:
    """The machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def distribution() -> Distribution:
    """Which distribution this is; "linux", as os-release(5) says, where it doesn't tell."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {"ID": "linux", "PRETTY_NAME": "Linux"}
    like = tuple(release.get("ID_LIKE", "").split())
    return Distribution(release["ID"], like, release.get("VERSION_ID", ""), release["PRETTY_NAME"])


def engines() -> tuple[str, ...]:
    """The container engines whose command is here, the preferred one first."""
    return tuple(engine for engine in _ENGINES if commands.find(engine))


def has_systemd() -> bool:
    """Whether systemd runs this machine (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def ephemeral_ports() -> tuple[int, int] | None:
    """The first and the last port of outgoing connections (ip_local_port_range in ip(7)); None if it isn't told."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return None
    return int(low), int(high)


def free_bytes(path: Path) -> int:
    """The room left for root on the file system of an existing path, in bytes."""
    with in_words("Looking for room at", path):
        status = os.statvfs(path)
        return status.f_bfree * status.f_frsize


def host_label() -> str:
    """The host name's first label, lower-case."""
    return os.uname().nodename.partition(".")[0].lower()


def primary_address() -> str | None:
    """The address this machine uses towards its default route, IPv4 before IPv6; None without a network.

    Connecting a UDP socket sends nothing; it makes the kernel choose the address that it would send from.
    """
    for family, far_away in _FAR_AWAY:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far_away, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None
