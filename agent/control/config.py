"""`STATE/control/control.toml`: where the substrate left the broker for its control plane."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from agent.broker import Address, Login, parse_address
from agent.errors import Refused
from agent.fields import Fields, dns_label
from agent.host import files, machine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "control.toml"
_PIN = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Settings:
    """How the control plane reaches its broker, and how nodes do.

    `management` is the base URL of RabbitMQ's management API. `fingerprints` are the SHA-256 of the
    certificate that both show and, during a renewal, of the next one. `advertised` is what tokens say; None
    for the machine's primary address, whatever that is. `node` is the founder's own node, for which a token
    is left in `token_file`.
    """

    broker: Address
    management: str
    account: str
    password: str = field(repr=False)
    fingerprints: tuple[str, ...]
    advertised: Address | None
    token_file: Path
    node: str

    @property
    def login(self) -> Login:
        return Login(self.broker, self.account, self.password, frozenset(self.fingerprints))


def read_settings(state: Path) -> Settings:
    """What control.toml says. Refused when it isn't there, so that this is no founder, or isn't whole."""
    path = state / "control" / NAME
    data = files.read(path)
    if data is None:
        raise Refused(
            f"This machine is not the founder of a mesh ({path} is not there): run this on the founder, or name its "
            "state folder with --state."
        )
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are both ValueErrors
        raise Refused(f"{path} is not TOML ({error}): run `agent up`, which writes it anew.") from error
    fields = Fields(document, str(path))
    settings = _read(fields)
    fields.finish()
    return settings


def advertised(settings: Settings) -> Address:
    """Where other machines reach the broker; loopback on a machine without a network."""
    if settings.advertised is not None:
        return settings.advertised
    return Address(machine.primary_address() or "127.0.0.1", settings.broker.port)


def _read(fields: Fields) -> Settings:
    fingerprints = fields.texts("fingerprints")
    if not fingerprints or not all(_PIN.fullmatch(one) for one in fingerprints):
        raise fields.wrong("fingerprints", "each is a SHA-256 in 64 lower-case hexadecimal digits")
    token_file = Path(fields.text("token_file"))
    if not token_file.is_absolute():
        raise fields.wrong("token_file", "is no absolute path")
    told = fields.text("advertised", "")
    broker = parse_address(fields.text("broker"))
    return Settings(
        broker=broker,
        management=fields.text("management"),
        account=fields.text("account"),
        password=fields.text("password"),
        fingerprints=fingerprints,
        advertised=parse_address(told) if told else None,
        token_file=token_file,
        node=dns_label(fields.text("node"), fields.path("node")),
    )
