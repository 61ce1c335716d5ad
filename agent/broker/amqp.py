"""The session, by pika, which only this module and `translation` import.

- pika runs its callbacks, and lets their exceptions escape, in the middle of its loop. So the callbacks here only
  put things aside; what may fail is run by `pump`, outside the loop.
- pika raises nothing when the broker closes a channel or cancels a consumer: `pump` looks.
- pika's questions have no deadline: a timer in its own loop sets one, by raising through it.
- Publishing has a channel apart from the consumers', because a refusal closes the channel it came on.
"""

from __future__ import annotations

import logging
import queue
import ssl
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pika
import pika.exceptions as raised
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.adapters.select_connection import SelectConnection
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from agent.broker import translation
from agent.broker.address import Login
from agent.broker.errors import (
    Blocked,
    Denied,
    Lost,
    NoSuchQueue,
    QueueFull,
    QueueInUse,
    Unanswered,
    Unroutable,
)
from agent.broker.message import Delivery, Message
from agent.broker.pins import pinned_context
from agent.errors import AgentError, Unavailable
from agent.wire import EXCHANGE

log = logging.getLogger(__name__)
# pika logs every lost link with its traceback; whoever holds the session says why, once, in words.
logging.getLogger("pika").setLevel(logging.CRITICAL)

_REPLIES = "amq.rabbitmq.reply-to"
_TCP_SECONDS = 5
_LOGIN_SECONDS = 15
_GOODBYE_SECONDS = 2
_LONGEST_WAIT = 1.0

# AMQP 0-9-1, reply codes.
_ACCESS_REFUSED, _NOT_FOUND = 403, 404


def open_session(login: Login, *, heartbeat: int, patience: float) -> AmqpSession:
    """As `agent.broker.connect`."""
    peer = f"the broker at {login.address}"
    sockets: list[ssl.SSLSocket] = []
    parameters = pika.ConnectionParameters(
        host=login.address.host,
        port=login.address.port,
        credentials=pika.PlainCredentials(login.account, login.password),
        ssl_options=pika.SSLOptions(pinned_context(login.pins, peer, sockets.append)),
        heartbeat=heartbeat,
        # Without it, a publish waits for ever while the broker is short of memory or disk.
        blocked_connection_timeout=patience,
        socket_timeout=_TCP_SECONDS,
        stack_timeout=_LOGIN_SECONDS,
        client_properties={"connection_name": login.account},
    )
    try:
        connection = pika.BlockingConnection(parameters)
    except Exception as error:
        for one in sockets:
            one.close()
        raise translation.unopened(error, login, peer) from error
    return AmqpSession(connection, sockets, peer, login.account, patience)


class AmqpSession:
    """`agent.broker.Session` on a `pika.BlockingConnection`."""

    def __init__(
        self,
        connection: BlockingConnection,
        sockets: list[ssl.SSLSocket],
        peer: str,
        account: str,
        patience: float,
    ) -> None:
        self._connection = connection
        self._sockets = sockets
        self._peer = peer
        self._account = account
        self._patience = patience
        self._end: Lost | None = None
        self._alarm = ""
        self._publisher: BlockingChannel | None = None
        self._consumers: list[tuple[str, str, BlockingChannel]] = []  # queue, consumer tag, channel
        self._inbox: deque[tuple[Callable[[Delivery], None], Delivery]] = deque()
        self._unacknowledged: dict[int, tuple[BlockingChannel, int]] = {}  # our tag: channel, the channel's tag
        self._last_tag = 0
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # pika's own wrapper would tell it too late, only between two events.
        connection._impl.add_on_connection_blocked_callback(self._note_alarm)
        connection._impl.add_on_connection_unblocked_callback(self._note_relief)

    def publish(self, message: Message, *, exchange: str = EXCHANGE, mandatory: bool = True) -> None:
        if self._publisher is None or self._publisher.is_closed:
            self._publisher = self._open_channel(confirming=True)
        self._publish_on(self._publisher, message, exchange, mandatory)

    def consume(self, queue: str, on_delivery: Callable[[Delivery], None], *, exclusive: bool, prefetch: int) -> None:
        channel = self._open_channel()

        def arrive(_: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
            self._last_tag += 1
            self._unacknowledged[self._last_tag] = (channel, method.delivery_tag)
            message = translation.message(method.routing_key, properties, body)
            self._inbox.append((on_delivery, Delivery(message, self._last_tag, bool(method.redelivered))))

        with self._bounded(queue):
            channel.basic_qos(prefetch_count=prefetch)
            tag = channel.basic_consume(queue, arrive, exclusive=exclusive)
        self._consumers.append((queue, tag, channel))

    def ack(self, *tags: int) -> None:
        with self._bounded():
            # Written out together: pika's own call would write and wait for each.
            for channel, its_tag in [self._unacknowledged.pop(tag) for tag in tags[:-1]]:
                channel._impl.basic_ack(its_tag)
            for channel, its_tag in [self._unacknowledged.pop(tag) for tag in tags[-1:]]:
                channel.basic_ack(its_tag)

    def reject(self, tag: int) -> None:
        channel, its_tag = self._unacknowledged.pop(tag)
        with self._bounded():
            channel.basic_reject(its_tag, requeue=False)

    def pump(self, seconds: float) -> None:
        if not self._inbox and self._calls.empty():
            self._wait(seconds)
        self._check()
        with suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()
        while self._inbox:
            on_delivery, delivery = self._inbox.popleft()
            on_delivery(delivery)

    def call(self, callback: Callable[[], None]) -> None:
        if self._end:
            raise Lost(str(self._end))
        self._calls.put(callback)
        try:
            self._connection.add_callback_threadsafe(_nothing)
        except Exception as error:
            raise Lost(f"{self._peer} is no longer connected") from error

    def request(self, message: Message, *, exchange: str = EXCHANGE, timeout: float) -> Message:
        # A channel of its own: a direct reply reaches the very channel that asked.
        channel = self._open_channel(confirming=True)
        asked = replace(message, reply_to=_REPLIES, correlation_id=uuid.uuid4().hex)
        replies: list[Message] = []

        def arrive(_: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
            reply = translation.message(method.routing_key, properties, body)
            if reply.correlation_id == asked.correlation_id:
                replies.append(reply)

        deadline = time.monotonic() + timeout
        with self._bounded():
            channel.basic_consume(_REPLIES, arrive, auto_ack=True)
        self._publish_on(channel, asked, exchange, mandatory=True)
        while not replies:
            left = deadline - time.monotonic()
            if left <= 0:
                with self._bounded():
                    channel.close()
                raise Unanswered(f"{self._peer} took the request, but nobody answered it for {timeout:g} s")
            self._wait(left)
            self._check()
            if channel.is_closed:
                raise self._over(f"closed the channel ({translation.closing_reason(channel)})")
        with self._bounded():
            channel.close()
        return replies[0]

    def count(self, queue: str) -> int:
        with self._bounded(queue):
            channel = self._connection.channel()
            found = channel.queue_declare(queue, passive=True)
            channel.close()
        return int(found.method.message_count)

    def close(self) -> None:
        was_over, self._end = self._end, self._end or Lost(f"the session with {self._peer} was closed")
        with suppress(Exception):
            if not was_over and self._connection.is_open:
                self._connection._impl.ioloop.call_later(_GOODBYE_SECONDS, self._expire)
                self._connection.close()
        # pika leaves its loop and socket to the garbage collector when it did not get that far itself.
        with suppress(Exception):
            self._connection._impl.ioloop.close()
        for one in self._sockets:
            with suppress(OSError):
                one.close()

    def _publish_on(self, channel: BlockingChannel, message: Message, exchange: str, mandatory: bool) -> None:
        key = message.routing_key
        with self._bounded():
            try:
                channel.basic_publish(exchange, key, message.body, translation.properties(message), mandatory=mandatory)
            except raised.UnroutableError as error:
                raise Unroutable(f"{self._peer} has no queue for {key!r}") from error
            except raised.NackError as error:
                raise QueueFull(f"{self._peer} took no message for {key!r}: the queue is full") from error

    def _open_channel(self, *, confirming: bool = False) -> BlockingChannel:
        with self._bounded():
            channel = self._connection.channel()
            if confirming:
                channel.confirm_delivery()
            return channel

    def _wait(self, seconds: float) -> None:
        # pika writes out what is left before it looks at its own limit, hence patience on top.
        with self._bounded(patience=_LONGEST_WAIT + self._patience):
            self._connection.process_data_events(time_limit=min(max(seconds, 0.0), _LONGEST_WAIT))

    def _check(self) -> None:
        """Lost, when what looks idle is dead."""
        for queue_name, tag, channel in self._consumers:
            if channel.is_closed:
                raise self._over(f"closed the channel that reads {queue_name} ({translation.closing_reason(channel)})")
            if tag not in channel.consumer_tags:
                raise self._over(f"reads {queue_name} to us no longer: the queue was deleted")
        if not self._connection.is_open:
            raise self._over("is no longer connected")

    @contextmanager
    def _bounded(self, queue_name: str = "", *, patience: float | None = None) -> Iterator[None]:
        """A question to the broker: it ends in time, and what pika raises leaves it as one of our errors."""
        if self._end:
            raise Lost(str(self._end))
        loop = self._connection._impl.ioloop
        timer = loop.call_later(self._patience if patience is None else patience, self._expire)
        try:
            yield
        except AgentError:
            raise
        except raised.ChannelClosedByBroker as error:
            raise self._channel_closed(error, queue_name) from error
        except raised.ConnectionBlockedTimeout as error:
            raise self._blocked() from error
        except Exception as error:
            raise self._over(translation.lost(error)) from error
        finally:
            with suppress(Exception):
                loop.remove_timeout(timer)

    def _channel_closed(self, error: raised.ChannelClosedByBroker, queue_name: str) -> Unavailable:
        text = translation.sentence(error.reply_text)
        if error.reply_code == _ACCESS_REFUSED and "exclusive use" in text:
            return QueueInUse(f"{queue_name} is read by another connection, which keeps it for itself")
        if error.reply_code == _ACCESS_REFUSED:
            return Denied(f"{self._peer} does not let the account {self._account} do this: {text}")
        if error.reply_code == _NOT_FOUND:
            return NoSuchQueue(f"{self._peer} does not know what was asked for: {text}")
        return self._over(f"closed the channel: {text}")

    def _over(self, what: str) -> Lost:
        if self._end is None:
            self._end = Lost(f"{self._peer} {what}")
        return Lost(str(self._end))

    def _expire(self) -> None:
        raise self._blocked() if self._alarm else self._over(f"has not answered for {self._patience:g} s")

    def _blocked(self) -> Blocked:
        self._end = Blocked(
            f"{self._peer} takes no messages ({self._alarm or 'it raised an alarm'}); free memory or disk space there"
        )
        return self._end

    def _note_alarm(self, _connection: SelectConnection, frame: Method) -> None:
        self._alarm = str(frame.method.reason)

    def _note_relief(self, _connection: SelectConnection, _frame: Method) -> None:
        self._alarm = ""


def _nothing() -> None:
    """Wakes `pump`."""
