"""The declaration: what a node should hold. Encoded once, signed, and read from those bytes.

Inside it an unknown field or kind refuses: a typing mistake must not mean less. Reading has three steps
because accepting asks its questions in an order: the type, the head, the resources.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from agent.errors import Refused
from agent.fields import REQUIRED, Fields, JsonValue, canonical, fingerprint, parse_json, quoted
from agent.resources.lists import parse_list
from agent.resources.model import Context, Resource

TYPE = "declaration/v1"
LARGEST_SERIAL = 2**53 - 1

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ]((?:[01]\d|2[0-3]):\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom the node believes from now on: signers' public keys (32 bytes each) and brokers' pins."""

    signers: tuple[bytes, ...] = ()
    fingerprints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declaration whose resources are still as they arrived."""

    node: str
    serial: int
    issued_at: datetime
    items: tuple[object, ...]
    expires_at: datetime | None = None
    retire: bool = False
    recovery: tuple[str, ...] = ()
    trust: Trust | None = None

    def resources(self, context: Context, carried: Collection[str]) -> tuple[Resource, ...]:
        """Its resources as this machine reads them; they may need `carried` ids. Refused when one is wrong."""
        resources = parse_list(self.items, context, beside=carried, where="resources")
        for resource in resources:
            if resource.founder_only:
                raise Refused(f"{resource.id} has a role, which only a bundle's resources can have; leave it out")
        return resources


def encode_declaration(declaration: Declaration) -> bytes:
    """The bytes to sign."""
    body: dict[str, JsonValue] = {
        "type": TYPE,
        "node": declaration.node,
        "serial": declaration.serial,
        "issued_at": format_time(declaration.issued_at),
        "resources": _json_items(declaration.items),
        "recovery": list(declaration.recovery),
    }
    if declaration.expires_at:
        body["expires_at"] = format_time(declaration.expires_at)
    if declaration.retire:
        body["retire"] = True
    if declaration.trust:
        body["trust"] = {
            "signers": [base64.b64encode(key).decode("ascii") for key in declaration.trust.signers],
            "fingerprints": list(declaration.trust.fingerprints),
        }
    return canonical(body).encode("utf-8")


def open_declaration(data: bytes) -> Fields:
    """The object inside verified bytes. Refused when it is unparsable or has a key twice."""
    return Fields(parse_json(data), "declaration")


def check_type(fields: Fields) -> None:
    """Refuse what is not a declaration of the version known here."""
    if fields.text("type", "") != TYPE:
        raise Refused(f"this is of type {quoted(fields.text('type', ''))}, not {TYPE}; a newer agent may know it")


def read_declaration(fields: Fields) -> Declaration:
    """Everything but the resources themselves; Refused when a field is missing, wrong or unknown."""
    fields.text("type")
    trust = fields.table("trust")
    declaration = Declaration(
        node=fields.text("node"),
        serial=fields.integer("serial", least=1, most=LARGEST_SERIAL),
        issued_at=parse_time(fields.text("issued_at"), "issued_at"),
        expires_at=parse_time(fields.text("expires_at"), "expires_at") if "expires_at" in fields else None,
        items=fields.each("resources", REQUIRED, lambda item, _: item),
        retire=fields.flag("retire", False),
        recovery=fields.texts("recovery", ()),
        trust=_trust(trust) if trust else None,
    )
    fields.finish()
    return declaration


def parse_time(text: str, where: str) -> datetime:
    """An RFC 3339 time, as an aware UTC datetime."""
    match = _TIME.fullmatch(text)
    if not match:
        raise Refused(f"{where}: {quoted(text)} is no RFC 3339 time, as in 2026-01-31T12:00:00Z")
    day, clock, fraction, zone = match.groups()
    offset = "+00:00" if zone in "Zz" else zone
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6]:0<6}{offset}")
        return moment.astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise Refused(f"{where}: {quoted(text)} is no time that exists") from error


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC, to the second."""
    return moment.astimezone(timezone.utc).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def expired(declaration: Declaration, now: datetime) -> timedelta | None:
    """How long ago it expired, more than nothing; None while it hasn't."""
    if declaration.expires_at is None or now <= declaration.expires_at:
        return None
    return now - declaration.expires_at


def _trust(fields: Fields) -> Trust:
    signers = fields.base64s("signers", ())
    pins = fields.texts("fingerprints", ())
    if any(len(signer) != 32 for signer in signers):
        raise fields.wrong("signers", "each is a public key of 32 bytes")
    fields.finish()
    return Trust(signers, tuple(fingerprint(pin, fields.path("fingerprints")) for pin in pins))


def _json_items(items: Sequence[object]) -> list[JsonValue]:
    return [Fields(item, f"resources[{at}]").values() for at, item in enumerate(items)]
