"""What a session on the broker can do, and how one is opened.

A session is one unit: a failure of its connection, channel or consumer ends it, and everything is built anew. It
belongs to the thread that opened it; `call` alone may be used from others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agent.broker.address import Login
from agent.broker.message import Delivery, Message
from agent.wire import EXCHANGE

# LINK's pulse: the broker misses two of these before it gives a peer up, and so do we.
HEARTBEAT = 10
# How long the broker may take for any one answer: longer than for a dead peer to be called dead.
PATIENCE = 30.0


class Session(Protocol):
    """One connection to the broker."""

    def publish(self, message: Message, *, exchange: str = EXCHANGE, mandatory: bool = True) -> None:
        """Publish persistently to `message.routing_key`; return once the broker confirmed that it keeps it.

        `exchange` is "" for the queue of that very name. Unroutable when `mandatory` and no queue is bound,
        QueueFull, Denied, NoSuchQueue (no such exchange), Lost, Blocked.
        """

    def consume(self, queue: str, on_delivery: Callable[[Delivery], None], *, exclusive: bool, prefetch: int) -> None:
        """Have `pump` hand over what arrives in `queue`, at most `prefetch` messages unacknowledged.

        QueueInUse (may be tried again in the same session), NoSuchQueue, Denied, Lost.
        """

    def ack(self, *tags: int) -> None:
        """Tell the broker to forget deliveries: they have been dealt with. Lost when their consumer is gone."""

    def reject(self, tag: int) -> None:
        """Give a delivery up: it goes where its queue sends the dead, if anywhere. Lost as for `ack`."""

    def pump(self, seconds: float) -> None:
        """Wait at most `seconds` (and never more than one) for something to happen, and deal with it.

        Deliveries go to their `on_delivery`, what `call` left is run: in this thread, free to use the session.
        What they raise comes out of here. Lost as soon as connection, channel or consumer is gone.
        """

    def call(self, callback: Callable[[], None]) -> None:
        """From any thread: have `pump` run this soon. Lost when the session is over; then it never runs."""

    def request(self, message: Message, *, exchange: str = EXCHANGE, timeout: float) -> Message:
        """Publish a request and wait `timeout` seconds for its reply, by RabbitMQ's direct reply-to.

        `reply_to` and `correlation_id` are filled in. Raises what `publish` does, and Unanswered.
        """

    def count(self, queue: str) -> int:
        """How many messages wait in a queue, those handed over and unacknowledged left out. NoSuchQueue, Lost."""

    def close(self) -> None:
        """End the session, politely if the broker answers at once. Never raises."""


def connect(login: Login, *, heartbeat: int = HEARTBEAT, patience: float = PATIENCE) -> Session:
    """Log in on a broker after its certificate proved to be a pinned one. Times in seconds.

    Unreachable, PinMismatch, LoginRefused, Denied (a limit of the account).
    """
    # pika costs a tenth of a second, which only those pay that speak to a broker.
    from agent.broker.amqp import open_session

    return open_session(login, heartbeat=heartbeat, patience=patience)
