"""Signed statements: whether one is the node's own word, and whether it was said before. Pure.

- The node signs routing key, counter, serial and body with the key that it enrolled with (`wire.statement_bytes`).
- A counter that is not above that key's last is a repeat: something of what was dealt with already. It is neither
  wrong nor news.
- One without a signature is a peer's that makes none; it counts, unless signatures are required.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from agent import wire
from agent.broker import Message
from agent.envelope import verifies
from agent.errors import Refused

# SQLite's integers and AMQP's are signed and have 64 bits.
LARGEST_COUNTER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Speaker:
    """What is known of who speaks: the key it enrolled with, and the last counter under it, 0 before any."""

    public_key: bytes
    counter: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """It counts; `counter` is the key's last from now on."""

    counter: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """It was said before."""


def judge(message: Message, serial: int | None, speaker: Speaker, *, required: bool) -> Fresh | Repeated:
    """Whether a statement is its speaker's, and new. Refused when it isn't its speaker's, or is `required` to be
    signed and isn't.
    """
    counter, signature = message.headers.get(wire.COUNTER_HEADER), message.headers.get(wire.SIGNATURE_HEADER)
    if counter is None and signature is None:
        if required:
            raise Refused("it is not signed, and this control plane was told to require signatures")
        return Fresh(speaker.counter)
    if not isinstance(counter, int) or not 0 < counter <= LARGEST_COUNTER:
        raise Refused("it is signed, but its counter is no whole number from 1 to 2^63 - 1")
    signed = wire.statement_bytes(message.routing_key, counter, serial, message.body)
    if not verifies(speaker.public_key, signed, _decoded(signature)):
        raise Refused("its signature is not by the key that its node enrolled with")
    return Fresh(counter) if counter > speaker.counter else Repeated()


def _decoded(signature: str | int | None) -> bytes:
    try:
        return base64.b64decode(signature, validate=True) if isinstance(signature, str) else b""
    except ValueError:
        return b""
