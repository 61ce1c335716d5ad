"""The messages of the link, as JSON: strict about types, tolerant of fields that a newer peer adds.

Byte fields are standard base64 with padding; an empty one is null, as Go's encoding/json writes it.
Optional fields are left out when they are empty. What travels beside a body (user_id, headers) is in
`agent.broker.Message`. A body that can't be decoded is Refused.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.errors import Refused
from agent.fields import Fields, JsonValue, parse_json, quoted

EXCHANGE = "mesh"
CONTROL_QUEUE = "control"
PARKED_QUEUE = "control.parked"
ENROL, REPORT, ALIVE = "enrol", "report", "alive"
DECLARATION_TYPE = "declaration"
SERIAL_HEADER, VERSION_HEADER, ADDRESS_HEADER = "serial", "version", "address"
COUNTER_HEADER, SIGNATURE_HEADER = "counter", "signature"

_BROKER = re.compile(r"amqps://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


def node_queue(node: str) -> str:
    """A node's queue, routing key and account: all three bear one name."""
    return f"node.{node}"


def join_account(node: str) -> str:
    """The account that a token for this node logs in with."""
    return f"join.{node}"


def broker_address(text: str, where: str) -> str:
    """A broker's address, `amqps://HOST:PORT` with an IPv6 host in brackets, or Refused."""
    match = _BROKER.fullmatch(text)
    if not match or not 1 <= int(match[2]) <= 65535:
        raise Refused(f"{where}: {quoted(text)} is no broker's address; write amqps://HOST:PORT")
    return text


@dataclass(frozen=True, slots=True)
class EnrolRequest:
    """A machine asks to be `node`. `profile` describes it and is opaque here."""

    node: str
    secret: str = field(repr=False)
    public_key: bytes
    overlay_key: bytes = b""
    profile: Mapping[str, JsonValue] = field(default_factory=dict)

    def encode(self) -> bytes:
        body: dict[str, JsonValue] = {
            "node": self.node,
            "secret": self.secret,
            "public_key": _base64(self.public_key),
        }
        return _encode(body, overlay_key=_base64(self.overlay_key), profile=dict(self.profile))


@dataclass(frozen=True, slots=True)
class EnrolReply:
    """The answer: either accepted, with everything a node needs to log in, or refused in words."""

    accepted: bool
    node: str = ""
    queue: str = ""
    password: str = field(default="", repr=False)
    fingerprint: str = ""
    signer: bytes = b""
    broker: str = ""
    refusal: str = ""

    def encode(self) -> bytes:
        return _encode(
            {"accepted": self.accepted},
            node=self.node,
            queue=self.queue,
            password=self.password,
            fingerprint=self.fingerprint,
            signer=_base64(self.signer),
            broker=self.broker,
            refusal=self.refusal,
        )


@dataclass(frozen=True, slots=True)
class Alive:
    """`node` is there."""

    node: str

    def encode(self) -> bytes:
        return _encode({"node": self.node})


@dataclass(frozen=True, slots=True)
class Report:
    """What is now true on `node`: assigned ids it owns, what failed and why, the ports of its carried ones.

    Ports are sent sorted, each once. A report with `refused` says only that a declaration was, and why.
    """

    node: str
    applied: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    carried: tuple[int, ...] = ()

    def encode(self) -> bytes:
        return _encode(
            {"node": self.node},
            applied=list(self.applied),
            failed=dict(self.failed),
            refused=self.refused,
            carried=[*sorted(set(self.carried))],
        )


@dataclass(frozen=True, slots=True)
class Signed:
    """A declaration's exact bytes and the signature over them."""

    declaration: bytes
    signature: bytes

    def encode(self) -> bytes:
        return _encode({"declaration": _base64(self.declaration), "signature": _base64(self.signature)})


def decode_enrol_request(body: bytes) -> EnrolRequest:
    """Read what a machine asks with; a null key is an empty one."""
    fields = Fields(parse_json(body), "enrol request")
    profile = fields.table("profile")
    return EnrolRequest(
        node=fields.text("node"),
        secret=fields.text("secret"),
        public_key=fields.base64("public_key"),
        overlay_key=fields.base64("overlay_key"),
        profile=profile.values() if profile else {},
    )


def decode_enrol_reply(body: bytes) -> EnrolReply:
    """Read the answer; what is absent is empty."""
    fields = Fields(parse_json(body), "enrol reply")
    return EnrolReply(
        accepted=fields.flag("accepted"),
        node=fields.text("node", ""),
        queue=fields.text("queue", ""),
        password=fields.text("password", ""),
        fingerprint=fields.text("fingerprint", ""),
        signer=fields.base64("signer"),
        broker=fields.text("broker", ""),
        refusal=fields.text("refusal", ""),
    )


def decode_alive(body: bytes) -> Alive:
    """Read who is there."""
    return Alive(node=Fields(parse_json(body), "alive").text("node"))


def decode_report(body: bytes) -> Report:
    """Read what a node states; what is absent is empty."""
    fields = Fields(parse_json(body), "report")
    carried = fields.integers("carried", ())
    if any(not 1 <= port <= 65535 for port in carried):
        raise Refused("report.carried: a port is a number from 1 to 65535")
    return Report(
        node=fields.text("node"),
        applied=fields.texts("applied", ()),
        failed=fields.text_table("failed"),
        refused=fields.text("refused", ""),
        carried=carried,
    )


def decode_signed(body: bytes) -> Signed:
    """Read an envelope; nothing of what is in it is looked at."""
    fields = Fields(parse_json(body), "envelope")
    return Signed(declaration=fields.base64("declaration"), signature=fields.base64("signature"))


def statement_bytes(routing_key: str, counter: int, serial: int | None, body: bytes) -> bytes:
    """What a node signs of a statement: routing key, counter, serial (empty in an alive), then the body."""
    return f"{routing_key}\n{counter}\n{'' if serial is None else serial}\n".encode() + body


def _base64(data: bytes) -> str | None:
    return base64.b64encode(data).decode("ascii") or None


def _encode(body: dict[str, JsonValue], **optional: JsonValue) -> bytes:
    body.update((name, value) for name, value in optional.items() if value)
    # A reason may quote a file's name that is no UTF-8: better a question mark than no report at all.
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
