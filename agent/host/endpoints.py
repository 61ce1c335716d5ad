"""Where a program listens, and when two can't: the kernel's rules, without asking the kernel.

- TCP and UDP never meet. Different ports never meet.
- 0.0.0.0 overlaps every IPv4 address; [::] accepts IPv4 too (dual stack) and overlaps every address of both.
- ::ffff:a.b.c.d is a.b.c.d.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address


class Protocol(Enum):
    """The transport of a port."""

    TCP = "tcp"
    UDP = "udp"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One port of one address; reads as `127.0.0.1:5671/tcp` or `[::]:5671/tcp`."""

    protocol: Protocol
    address: Address
    port: int

    def __str__(self) -> str:
        host = f"[{self.address}]" if isinstance(self.address, IPv6Address) else str(self.address)
        return f"{host}:{self.port}/{self.protocol.value}"

    def overlaps(self, other: Endpoint) -> bool:
        """Whether the kernel would refuse the second of two programs that bind these."""
        return (
            self.protocol is other.protocol
            and self.port == other.port
            and addresses_overlap(self.address, other.address)
        )


def addresses_overlap(one: Address, other: Address) -> bool:
    """Whether two bound addresses share an address that could be connected to; symmetric."""
    one, other = _plain(one), _plain(other)
    return one == other or _covers(one, other) or _covers(other, one)


def _covers(wide: Address, narrow: Address) -> bool:
    return wide.is_unspecified and (wide.version == 6 or narrow.version == 4)


def _plain(address: Address) -> Address:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
