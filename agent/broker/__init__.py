"""The link's AMQP: a broker known by its certificate alone, and one session on it.

- The certificate's SHA-256 is compared with a set of pins before any credential is sent (`pins`).
- Whatever pika, ssl or the sockets raise leaves this room as one of its own errors, in words (`errors`).
- Every question to the broker ends in bounded time; a session that is dead but looks idle is found out.
- pika is imported when a connection is first made, and nowhere else in the program.
"""

from __future__ import annotations

from agent.broker.address import Address, Login, parse_address
from agent.broker.errors import (
    Blocked,
    Denied,
    LoginRefused,
    Lost,
    NoSuchQueue,
    PinMismatch,
    QueueFull,
    QueueInUse,
    Unanswered,
    Unreachable,
    Unroutable,
)
from agent.broker.message import DIRECT_REPLY, Delivery, Message
from agent.broker.session import HEARTBEAT, PATIENCE, Session, connect

__all__ = [
    "DIRECT_REPLY",
    "HEARTBEAT",
    "PATIENCE",
    "Address",
    "Blocked",
    "Delivery",
    "Denied",
    "Login",
    "LoginRefused",
    "Lost",
    "Message",
    "NoSuchQueue",
    "PinMismatch",
    "QueueFull",
    "QueueInUse",
    "Session",
    "Unanswered",
    "Unreachable",
    "Unroutable",
    "connect",
    "parse_address",
]
