"""A message as the link sees it, in both directions. Pure.

AMQP properties that the link gives no meaning to are not here; an absent property is None. Headers that
are neither text nor whole numbers are dropped on their way in: nothing of ours sends any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# How RabbitMQ names a direct reply-to: what begins so reaches exactly the channel that asked. `amq.` is reserved, so
# no queue can be called that.
DIRECT_REPLY = "amq.rabbitmq.reply-to."


@dataclass(frozen=True, slots=True)
class Message:
    """`timestamp` in seconds since the epoch, `expiration` in seconds from when the broker took it.

    A `user_id` that the broker delivers is proved: it is the account that published the message.
    """

    body: bytes
    routing_key: str = ""
    headers: Mapping[str, str | int] = field(default_factory=dict)
    user_id: str | None = None
    type: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    content_type: str | None = None
    expiration: float | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that waits for `ack` or `reject`. `tag` is good in its session only.

    `redelivered` is the broker's word: it was handed to somebody before, who did not acknowledge it.
    """

    message: Message
    tag: int
    redelivered: bool
