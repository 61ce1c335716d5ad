"""Where a broker is, and as whom one logs in there. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.wire import broker_address


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's TLS listener. `host` is a name or an IP address, an IPv6 one without its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqps://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Login:
    """An account on a broker. `pins`: its certificate's SHA-256 is one of these, as 64 lower-case hex digits."""

    address: Address
    account: str
    password: str = field(repr=False)
    pins: frozenset[str]


def parse_address(text: str) -> Address:
    """Read `amqps://HOST:PORT` (an IPv6 host in brackets); Refused when it is anything else."""
    host, _, port = broker_address(text, "the broker's address").removeprefix("amqps://").rpartition(":")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
