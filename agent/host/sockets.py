"""Which program holds a port now, read from /proc (proc(5)).

- Held means: a TCP socket that listens, a UDP socket that is bound.
- Only this network namespace is seen; an IPv6 socket counts as dual-stack, since /proc does not tell.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from agent.host import processes
from agent.host.endpoints import Address, Endpoint, Protocol

_TABLES = (("tcp", Protocol.TCP), ("tcp6", Protocol.TCP), ("udp", Protocol.UDP), ("udp6", Protocol.UDP))
_TCP_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Holder:
    """A program in the way: `wanted` was asked for, `endpoint` overlaps it and is open.

    `pids` are all processes that have the socket, lowest first; none when it is not shown to us (another
    container's, or ours without root). `command` is the first one's.
    """

    wanted: Endpoint
    endpoint: Endpoint
    pids: tuple[int, ...]
    command: str

    def __str__(self) -> str:
        if not self.pids:
            return f"a program that can't be seen from here (on {self.endpoint})"
        return f"process {self.pids[0]} ({self.command}) on {self.endpoint}"


@dataclass(frozen=True, slots=True)
class Bound:
    """An open socket: its endpoint and inode."""

    endpoint: Endpoint
    inode: int


def holders(wanted: Iterable[Endpoint]) -> list[Holder]:
    """Every open socket that overlaps one of the wanted endpoints, in their order, with who has it."""
    bound = list(_bound())
    conflicts = [(want, open_) for want in wanted for open_ in bound if want.overlaps(open_.endpoint)]
    if not conflicts:
        return []
    pids = _pids_of({open_.inode for _, open_ in conflicts})
    return [_holder(want, open_.endpoint, pids.get(open_.inode, [])) for want, open_ in conflicts]


def given_out() -> range:
    """The ports that the kernel gives to programs which ask for none (ip(7), ip_local_port_range)."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()
    except (OSError, ValueError):
        return range(0)
    return range(int(low), int(high) + 1)


def parse_table(text: str, protocol: Protocol) -> list[Bound]:
    """The held endpoints in the text of /proc/net/tcp, tcp6, udp or udp6."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or (protocol is Protocol.TCP and fields[3] != _TCP_LISTEN):
            continue
        address, _, port = fields[1].partition(":")
        found.append(Bound(Endpoint(protocol, _address(address), int(port, 16)), int(fields[9])))
    return found


def _bound() -> Iterator[Bound]:
    for name, protocol in _TABLES:
        with suppress(FileNotFoundError):  # No IPv6 here.
            yield from parse_table(Path("/proc/net", name).read_text("ascii"), protocol)


def _address(digits: str) -> Address:
    # 32-bit words of the address, each written as a number in the machine's own byte order.
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)


def _pids_of(inodes: Collection[int]) -> dict[int, list[int]]:
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, list[int]] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        for inode in {wanted[link] for link in _links(pid) if link in wanted}:
            found.setdefault(inode, []).append(pid)
    return found


def _links(pid: int) -> Iterator[str]:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                yield os.readlink(entry.path)


def _holder(wanted: Endpoint, endpoint: Endpoint, pids: list[int]) -> Holder:
    return Holder(wanted, endpoint, tuple(pids), processes.command(pids[0]) if pids else "unknown")
