"""Who may become a node: decided purely. No crash on either side locks anybody out, and no thief gets in.

- The secret proves the right, compared in constant time with the digests that are kept; the token's record
  says which node it is for, not the body. Unknown, spent, expired and badly signed all look alike.
- Accepting fixes the new password. A repeat with the same token, signed by the key that was accepted, gets
  the same answer, and so does the very message that the broker delivers again because we died over it.
  Anybody else's is refused.
- A token counts until its node's own account first speaks, or until another token for that node is made or
  spent.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from agent import wire
from agent.broker import DIRECT_REPLY, Delivery, Message
from agent.envelope import PUBLIC_KEY_BYTES, verifies
from agent.errors import Refused

REFUSAL = "this token cannot be used to join"


class Proof(Enum):
    """What the signature beside a request proves of the key inside it."""

    ABSENT = "absent"
    GOOD = "good"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Spending:
    """How a token was spent: by which key, for which password, by which request (the SHA-256 of its body).

    `replaces`: the node had enrolled with another key before, and that machine is to be shut out.
    """

    public_key: bytes
    password: str = field(repr=False)
    request: bytes
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token that still counts. Of its secret only the SHA-256 is kept. Times are seconds since the epoch.

    `broker` and `signer` are what was written into it; the answer to its holder repeats them.
    """

    id: int
    node: str
    digest: bytes
    broker: str
    signer: bytes
    made: float
    expires: float
    spending: Spending | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """An enrolment request as it arrived. `redelivered` is the broker's word, not the sender's."""

    wanted: wire.EnrolRequest
    proof: Proof
    digest: bytes
    redelivered: bool


@dataclass(frozen=True, slots=True)
class Spend:
    """The token is good and unspent: spend it."""

    token: IssuedToken


@dataclass(frozen=True, slots=True)
class Repeat:
    """It was spent by this very machine: the same answer again."""

    token: IssuedToken
    spending: Spending


@dataclass(frozen=True, slots=True)
class Deny:
    """Nobody joins; `why` is all that the asker learns."""

    why: str


Decision = Spend | Repeat | Deny


def secret_digest(secret: str) -> bytes:
    """What is kept of a token's secret: SHA-256. The secret is 256 random bits, so no slower digest is
    needed.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def read_request(delivery: Delivery) -> Request:
    """An enrolment request. Refused when it can't be understood, or wants its answer elsewhere than by direct
    reply-to: any other address could be somebody's queue.
    """
    message = delivery.message
    if not (message.reply_to or "").startswith(DIRECT_REPLY):
        raise Refused("its reply_to is not RabbitMQ's direct reply-to, the only address that is answered")
    wanted = wire.decode_enrol_request(message.body)
    return Request(
        wanted=wanted,
        proof=_proof(wanted, message),
        digest=hashlib.sha256(message.body).digest(),
        redelivered=delivery.redelivered,
    )


def decide(request: Request, tokens: Sequence[IssuedToken], now: float) -> Decision:
    """What becomes of a request, given every token that still counts."""
    if len(request.wanted.public_key) != PUBLIC_KEY_BYTES:
        return Deny(f"the public key has {len(request.wanted.public_key)} bytes, not {PUBLIC_KEY_BYTES}")
    token = _find(secret_digest(request.wanted.secret), tokens)
    if token is None or request.proof is Proof.WRONG:
        return Deny(REFUSAL)
    if token.spending is None:
        return Spend(token) if now < token.expires else Deny(REFUSAL)
    if hmac.compare_digest(token.spending.public_key, request.wanted.public_key) and (
        request.proof is Proof.GOOD or (request.redelivered and request.digest == token.spending.request)
    ):
        return Repeat(token, token.spending)
    return Deny(REFUSAL)


def _proof(wanted: wire.EnrolRequest, message: Message) -> Proof:
    header = message.headers.get(wire.SIGNATURE_HEADER)
    if header is None:
        return Proof.ABSENT
    try:
        signature = base64.b64decode(header, validate=True) if isinstance(header, str) else b""
    except ValueError:
        return Proof.WRONG
    signed = wire.statement_bytes(wire.ENROL, 0, None, message.body)
    return Proof.GOOD if verifies(wanted.public_key, signed, signature) else Proof.WRONG


def _find(digest: bytes, tokens: Sequence[IssuedToken]) -> IssuedToken | None:
    found = None
    for token in tokens:  # all of them, so that the time taken tells nothing of which one is near
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found
