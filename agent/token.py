"""The one-time right to join, as one line of text that a person can copy.

`mesh-join-1.PAYLOAD.CHECK`: the payload is base64url JSON, the check the first 8 hexadecimal digits of its
SHA-256, so that a line which lost its end is told from one that was never good. The secret in it is also
the password of the token's account.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field

from agent.envelope import PUBLIC_KEY_BYTES
from agent.errors import Refused
from agent.fields import Fields, canonical, dns_label, fingerprint, parse_json
from agent.wire import broker_address, join_account

_PREFIX = "mesh-join-1"


@dataclass(frozen=True, slots=True)
class Token:
    """Where the broker is (`amqps://HOST:PORT`), its pins, whose word counts, and the right itself."""

    node: str
    broker: str
    fingerprints: tuple[str, ...]
    signer: bytes
    secret: str = field(repr=False)

    @property
    def account(self) -> str:
        return join_account(self.node)

    def encode(self) -> str:
        payload = canonical(
            {
                "node": self.node,
                "broker": self.broker,
                "fingerprints": list(self.fingerprints),
                "signer": base64.b64encode(self.signer).decode("ascii"),
                "secret": self.secret,
            }
        ).encode()
        text = base64.urlsafe_b64encode(payload).decode("ascii").rstrip("=")
        return f"{_PREFIX}.{text}.{_check(text)}"


def parse_token(text: str) -> Token:
    """Read a token; Refused when it is not one, was cut, or was made for another version."""
    prefix, _, rest = "".join(text.split()).partition(".")
    payload, _, check = rest.partition(".")
    if prefix != _PREFIX or not payload:
        raise Refused(
            f"this is not a join token (one begins with {_PREFIX}.); "
            "make one on the founder with `agent control token create NAME`"
        )
    if check != _check(payload):
        raise Refused("this join token was cut or changed on its way; copy the whole line again")
    try:
        decoded = base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused("this join token cannot be read; copy the whole line again") from error
    fields = Fields(parse_json(decoded), "join token")
    token = Token(
        node=dns_label(fields.text("node"), "the token's node name"),
        broker=broker_address(fields.text("broker"), fields.path("broker")),
        fingerprints=tuple(fingerprint(pin, fields.path("fingerprints")) for pin in fields.texts("fingerprints")),
        signer=fields.base64("signer"),
        secret=fields.text("secret"),
    )
    if len(token.signer) != PUBLIC_KEY_BYTES or not token.fingerprints or not token.secret:
        raise Refused("this join token lacks a signer, a fingerprint or its secret; make a new one on the founder")
    return token


def _check(payload: str) -> str:
    return hashlib.sha256(payload.encode("utf-8", "replace")).hexdigest()[:8]
