"""Ports as resources write them: `[ADDRESS:]PORT[/PROTOCOL]`.

One address has one spelling here, so that equal ports are equal values: `::ffff:127.0.0.1` is read as
127.0.0.1. When two ports are one to the kernel, `agent.host.endpoints` knows.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal, cast

from agent.errors import Refused
from agent.fields import quoted
from agent.host import endpoints

Protocol = Literal["tcp", "udp"]
# No address means every address of both families: what a program gets that binds [::] with IPV6_V6ONLY off.
EVERY_ADDRESS = "*"

_PORT = re.compile(r"(?:(\[[^]]*\]|[^:\[\]]*):)?([0-9]{1,5})(?:/([a-z]+))?")


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """A host port: `protocol`, `address` (a literal IP address, or `*`), `number` (1 to 65535)."""

    protocol: Protocol
    address: str
    number: int

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.number}/{self.protocol}"

    @property
    def endpoint(self) -> endpoints.Endpoint:
        """What a program binds that takes this port; every address is [::], which takes IPv4 along."""
        address = ipaddress.ip_address("::" if self.address == EVERY_ADDRESS else self.address)
        return endpoints.Endpoint(endpoints.Protocol(self.protocol), address, self.number)

    def overlaps(self, other: Port) -> bool:
        """Whether two programs could not both have them (Linux's rules for bind(2), ip(7) and ipv6(7))."""
        same = self.protocol == other.protocol and self.number == other.number
        return same and self.endpoint.overlaps(other.endpoint)


def parse_port(text: str, where: str) -> Port:
    """Read `[ADDRESS:]PORT[/PROTOCOL]`; tcp unless it says udp. Refused when it is not that."""
    match = _PORT.fullmatch(text)
    if not match:
        raise Refused(f"{where}: {quoted(text)} is no port; write [ADDRESS:]PORT[/PROTOCOL], as in 127.0.0.1:5671/tcp")
    address, number, protocol = match[1], int(match[2]), match[3] or "tcp"
    if not 1 <= number <= 65535:
        raise Refused(f"{where}: {number} is no port number; it must be from 1 to 65535")
    if protocol not in ("tcp", "udp"):
        raise Refused(f"{where}: {quoted(protocol)} is no protocol of a port; it must be tcp or udp")
    if address is None or address == EVERY_ADDRESS:
        return Port(cast(Protocol, protocol), EVERY_ADDRESS, number)
    return Port(cast(Protocol, protocol), _address(address, where), number)


def _address(text: str, where: str) -> str:
    bare = text[1:-1] if text.startswith("[") else text
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError as error:
        raise Refused(f"{where}: {quoted(text)} is no IP address") from error
    if (parsed.version == 6) != text.startswith("["):
        raise Refused(f"{where}: an IPv6 address stands in brackets, as in [::1]:80; an IPv4 one doesn't")
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.scope_id is not None:
        raise Refused(f"{where}: {quoted(text)} names an interface; leave out what follows the %")
    return str(parsed.ipv4_mapped or parsed)
