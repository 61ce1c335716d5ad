"""Between pika's values and ours, and from what it raises to words for a person. Nothing here speaks to a broker."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping

import pika.exceptions as raised
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorStackTimeout
from pika.spec import BasicProperties

from agent.broker.address import Login
from agent.broker.errors import Denied, LoginRefused, PinMismatch, Unreachable
from agent.broker.message import Message
from agent.errors import Unavailable

_PERSISTENT = 2


def properties(message: Message) -> BasicProperties:
    """All of a message but its key and body; persistent."""
    return BasicProperties(
        content_type=message.content_type,
        headers=dict(message.headers) or None,
        delivery_mode=_PERSISTENT,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        expiration=None if message.expiration is None else str(round(message.expiration * 1000)),
        message_id=message.message_id,
        timestamp=message.timestamp,
        type=message.type,
        user_id=message.user_id,
    )


def message(routing_key: object, properties: BasicProperties, body: bytes) -> Message:
    """A message as it arrived, without what is no UTF-8 and without headers of other types than ours."""
    expiration = _text(properties.expiration)
    headers: Mapping[object, object] = properties.headers or {}
    return Message(
        body=body,
        routing_key=_text(routing_key) or "",
        headers={
            name: value if isinstance(value, str) else int(value)  # pika has an int of its own for some
            for name, value in headers.items()
            if isinstance(name, str) and isinstance(value, str | int) and not isinstance(value, bool)
        },
        user_id=_text(properties.user_id),
        type=_text(properties.type),
        reply_to=_text(properties.reply_to),
        correlation_id=_text(properties.correlation_id),
        message_id=_text(properties.message_id),
        timestamp=properties.timestamp if isinstance(properties.timestamp, int) else None,
        content_type=_text(properties.content_type),
        expiration=int(expiration) / 1000 if expiration and expiration.isdecimal() else None,
    )


def unopened(error: Exception, login: Login, peer: str) -> Unavailable:
    """Why no session came about. pika wraps the reason once for each layer it passes."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, PinMismatch):
            return cause
        if isinstance(cause, raised.ProbableAuthenticationError | raised.AuthenticationError):
            return LoginRefused(
                f"{peer} does not know the account {login.account} with this password; "
                "if it should, join again with a new token from `agent control token create`"
            )
        if isinstance(cause, raised.ProbableAccessDeniedError):
            why = "it has too many connections already" if "limit" in str(cause) else "it has no rights there"
            return Denied(f"{peer} does not let the account {login.account} in: {why}")
        if isinstance(cause, AMQPConnectorStackTimeout):
            return Unreachable(f"{peer} does not answer in time")
    root = causes[-1]
    if isinstance(root, socket.gaierror):
        return Unreachable(f"{login.address.host}, the broker's host, cannot be resolved: {root.strerror}")
    if isinstance(root, ConnectionRefusedError):
        return Unreachable(f"nothing listens at {login.address}, where the broker should")
    if isinstance(root, TimeoutError):
        return Unreachable(f"{peer} does not answer in time")
    if isinstance(root, ssl.SSLError):
        return Unreachable(f"{peer} does not speak TLS as we do: {root.reason or root}")
    if isinstance(root, OSError):
        return Unreachable(f"{peer} cannot be reached: {root.strerror or root}")
    return Unreachable(f"{peer} closed the connection before the login was over: {sentence(str(root))}")


def lost(error: Exception) -> str:
    """Why a session ended, as what is said of the broker after its name."""
    if isinstance(error, raised.AMQPHeartbeatTimeout):
        return "fell silent"
    if isinstance(error, raised.ConnectionClosedByBroker):
        return f"closed the connection: {sentence(error.reply_text)}"
    root = list(_causes(error))[-1]
    return f"was lost: {getattr(root, 'strerror', None) or sentence(str(root)) or type(root).__name__}"


def closing_reason(channel: BlockingChannel) -> str:
    """Why a channel was closed, in the broker's words."""
    reason = getattr(channel, "_closing_reason", None)
    return sentence(getattr(reason, "reply_text", "") or str(reason))


def sentence(text: object) -> str:
    """RabbitMQ's words without the code in capitals before them."""
    words = str(text)
    code, dash, rest = words.partition(" - ")
    return rest if dash and code.replace("_", "").isupper() else words


def _text(value: object) -> str | None:
    # pika hands over what is no UTF-8 as bytes.
    return value if isinstance(value, str) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        inner = getattr(found, "exception", None) or next(iter(found.args), None)
        found = inner if isinstance(inner, BaseException) else None
