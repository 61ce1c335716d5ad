"""What could not be understood: how it is kept, looked at, dropped and tried again.

- A parked message has the reason and all that it came with as headers; re-publishing a foreign `user_id` as such would
  close the channel. Of an enrolment no body is kept, because it may hold a secret.
- What is tried again goes to the control queue under the control plane's own account, which the broker proves; no node
  can publish there, so what it says it came with is believed.
- A message that the broker itself gave up lies there as it came; what looks like our headers on it is its sender's.
- Whoever looks takes the queue for itself, and what isn't dropped is given back in its order.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from agent import wire
from agent.broker import Delivery, Lost, Message, Session
from agent.control import bounds
from agent.errors import Refused, Unavailable
from agent.fields import quoted

LARGEST_PARKED = 256 * 1024
_REASON, _ORIGINAL, _HEADER, _CUT = "reason", "original.", "original.header.", "cut"
# The broker's own, on what it gave up.
_DEATH = "x-first-death-queue"
_GIVEN_UP = "the control plane died over it too often, or could not read it at all"
_MOST_HEADERS, _LONGEST_HEADER = 50, 1_000
_LONGEST_NAME = 60  # of at most four bytes each: a header's name has room for 255 (AMQP 0-9-1, 4.2.5.3)
_ID_DIGITS = 8
_MOST = 1_000  # what the queue holds (agent.control.accounts)
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Parked:
    """A message that lies parked. `at` is when it was put there, in seconds since the epoch, if that is known.

    `original` are the properties and headers that it came with, `routing_key` among them; `cut`: its body was longer.
    """

    id: str
    reason: str
    sender: str
    at: float | None
    original: Mapping[str, str]
    body: bytes
    cut: bool

    @property
    def routing_key(self) -> str:
        return self.original.get("routing_key", "")


def parked(message: Message, why: str, *, now: float, random: Callable[[int], bytes]) -> Message:
    """What is kept of a message in `control.parked`."""
    is_request = message.routing_key == wire.ENROL
    headers: dict[str, str | int] = {_REASON: why, **_originals(message)}
    if not is_request and len(message.body) > LARGEST_PARKED:
        headers[_CUT] = 1
    return Message(
        body=b"" if is_request else message.body[:LARGEST_PARKED],
        routing_key=wire.PARKED_QUEUE,
        headers=headers,
        message_id=random(8).hex(),
        timestamp=int(now),
    )


def restored(message: Message) -> Message:
    """The message behind one that is tried again: what it came with in the place it came in."""
    text = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    headers: dict[str, str | int] = {}
    for name, value in text.items():
        if name.startswith(_HEADER):
            own = name[len(_HEADER) :]
            is_number = own in (wire.SERIAL_HEADER, wire.COUNTER_HEADER) and value.removeprefix("-").isdecimal()
            headers[own] = int(value) if is_number else value
    said = text.get(f"{_ORIGINAL}timestamp", "")
    return Message(
        body=message.body,
        routing_key=text.get(f"{_ORIGINAL}routing_key", ""),
        headers=headers,
        user_id=text.get(f"{_ORIGINAL}user_id"),
        type=text.get(f"{_ORIGINAL}type"),
        reply_to=text.get(f"{_ORIGINAL}reply_to"),
        correlation_id=text.get(f"{_ORIGINAL}correlation_id"),
        message_id=text.get(f"{_ORIGINAL}message_id"),
        timestamp=int(said) if said.isdecimal() else None,
        content_type=text.get(f"{_ORIGINAL}content_type"),
    )


def read_all(session: Session) -> tuple[Parked, ...]:
    """All that lies parked, the oldest first; it stays there. Unavailable while another looks."""
    return tuple(_described(delivery.message) for delivery in _take_all(session))


def drop(session: Session, ids: Collection[str]) -> int:
    """Drop those of these ids; how many they were. Refused, with nothing dropped, when one isn't there."""
    chosen = _choose(_take_all(session), ids)
    for delivery, _ in chosen:
        session.ack(delivery.tag)
    return len(chosen)


def retry(session: Session, ids: Collection[str] | None, *, account: str) -> int:
    """Give those of these ids, or all for None, to the control plane once more, as `account`, its own; how many they
    were.

    Refused, with nothing changed, when one isn't there or isn't kept whole; of all, those kept whole are meant.
    """
    chosen = _choose(_take_all(session), ids)
    for _, one in chosen:
        why = _why_not(one)
        if why and ids is not None:
            raise Refused(why)
    chosen = [(delivery, one) for delivery, one in chosen if not _why_not(one)]
    for delivery, _ in chosen:
        again = replace(delivery.message, routing_key=wire.CONTROL_QUEUE, user_id=account)
        # First there, then gone from here: what dies between is tried twice, which changes nothing.
        session.publish(again, exchange="")
        session.ack(delivery.tag)
    return len(chosen)


def _why_not(one: Parked) -> str | None:
    """Why a message can't be tried again; None when it can."""
    if one.routing_key == wire.ENROL:
        return f"{one.id} was a request to join, of which no body is kept: the machine asks again by itself."
    if not one.routing_key:
        return f"{one.id} was given up by the broker, which did not keep what it was: only drop it."
    if one.cut:
        return f"Of {one.id} only the first {LARGEST_PARKED} bytes were kept, so it can't be tried again."
    return None


def _take_all(session: Session) -> Sequence[Delivery]:
    """Every parked message, not acknowledged: when the session ends, what is left goes back to its place."""
    taken: list[Delivery] = []
    count = session.count(wire.PARKED_QUEUE)
    try:
        session.consume(wire.PARKED_QUEUE, taken.append, exclusive=True, prefetch=_MOST)
        deadline = time.monotonic() + _PATIENCE
        while len(taken) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unavailable(f"The broker handed over {len(taken)} of {count} parked messages; try again.")
            session.pump(left)
    except Lost as error:
        raise Unavailable(
            f"What is parked could not be read: {error}. Try again; if it ends so every time, one of these messages "
            "can't be decoded, and `agent control parked drop --all` drops them all unread."
        ) from error
    return taken


def _choose(taken: Sequence[Delivery], ids: Collection[str] | None) -> list[tuple[Delivery, Parked]]:
    described = [(delivery, _described(delivery.message)) for delivery in taken]
    if ids is None:
        return described
    unknown = sorted(frozenset(ids) - {one.id for _, one in described})
    if unknown:
        raise Refused(f"No parked message is called {quoted(unknown[0])}; see `agent control parked list`.")
    return [(delivery, one) for delivery, one in described if one.id in ids]


def _described(message: Message) -> Parked:
    ours = _REASON in message.headers and _DEATH not in message.headers
    original = (
        {name[len(_ORIGINAL) :]: str(value) for name, value in message.headers.items() if name.startswith(_ORIGINAL)}
        if ours
        else {name: str(value) for name, value in _properties(message).items() if value is not None}
    )
    return Parked(
        id=_id(message),
        reason=bounds.clean(str(message.headers[_REASON]), bounds.LONGEST_REASON) if ours else _GIVEN_UP,
        sender=original.get("user_id", ""),
        at=message.timestamp if ours else None,
        original={
            bounds.clean(name, _LONGEST_NAME): bounds.clean(value, _LONGEST_HEADER) for name, value in original.items()
        },
        body=message.body,
        cut=ours and _CUT in message.headers,
    )


def _id(message: Message) -> str:
    """A name that stays the same as long as the message lies there; two that are alike in all have the same."""
    parts = [message.message_id, message.user_id, message.timestamp, sorted(message.headers.items())]
    return hashlib.sha256(repr(parts).encode("utf-8", "replace") + message.body).hexdigest()[:_ID_DIGITS]


def _originals(message: Message) -> dict[str, str]:
    properties: dict[str, str | int | None] = {"routing_key": message.routing_key, **_properties(message)}
    headers = list(message.headers.items())[:_MOST_HEADERS]
    named = {
        **{f"{_ORIGINAL}{name}": value for name, value in properties.items()},
        **{f"{_HEADER}{name}": value for name, value in headers},
    }
    return {
        bounds.clean(name, _LONGEST_NAME): bounds.clean(str(value), _LONGEST_HEADER)
        for name, value in named.items()
        if value is not None
    }


def _properties(message: Message) -> dict[str, str | int | None]:
    return {
        "user_id": message.user_id,
        "type": message.type,
        "reply_to": message.reply_to,
        "correlation_id": message.correlation_id,
        "message_id": message.message_id,
        "timestamp": message.timestamp,
        "content_type": message.content_type,
    }


def in_text(body: bytes) -> str:
    """A body as it can be shown: text where it is some, base64 where it isn't."""
    try:
        return bounds.clean(body.decode("utf-8"), LARGEST_PARKED)
    except ValueError:
        return f"base64 {base64.b64encode(body).decode('ascii')}"
