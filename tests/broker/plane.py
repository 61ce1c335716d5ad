"""A control plane on a real broker, and a peer that speaks as another implementation would: raw bodies, by pika."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika

from agent.control.plane import Control, open_control
from agent.control.service import serve
from agent.control.views import Mesh, NodeDetail
from agent.envelope import SigningKey
from agent.resources import Document
from agent.token import Token
from tests.broker.rabbit import CONTROL_PASSWORD, Rabbit, wait_until

REPLIES = "amq.rabbitmq.reply-to"
REFUSAL = "this token cannot be used to join"


class Plane:
    """`control serve` in a thread, on a state folder of its own. `options` are those of `serve`."""

    def __init__(self, rabbit: Rabbit, state: Path, **options: Any) -> None:
        self.rabbit = rabbit
        self.state = state
        self.options = options
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._keys = iter(range(1, 256))
        write_settings(rabbit, state)

    @property
    def ready_file(self) -> Path:
        return self.state / "control" / "ready"

    @property
    def founder_token(self) -> Path:
        return self.state / "control" / "founder.token"

    def begin(self) -> None:
        """Start it, and don't wait."""
        self.failure = None
        self._stop.clear()
        self._thread = threading.Thread(target=self._serve, name="control")
        self._thread.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.ready_file.unlink(missing_ok=True)
        self.begin()
        wait_until(lambda: self.ready_file.exists() or self.failure is not None, 30)
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)
            assert not self._thread.is_alive()
            self._thread = None

    def died(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def control(self, **options: Any) -> Control:
        return open_control(self.state, **options)

    def token(self, node: str, **options: Any) -> Token:
        """A token for a node, whether it has joined before or not."""
        with self.control(**options) as control:
            return control.create_token(node, replace=True)

    def newcomer(self, node: str, key: SigningKey | None = None, **options: Any) -> Newcomer:
        """A machine with a new token for a node, and a key that no other one has unless it is given."""
        own = key or SigningKey(bytes([next(self._keys)]) * 32)
        return Newcomer(self.rabbit, self.token(node, **options), own)

    def join(self, node: str, key: SigningKey | None = None) -> Node:
        """A node that has enrolled, and has not yet spoken."""
        with self.newcomer(node, key) as newcomer:
            return newcomer.node(newcomer.enrol())

    def mesh(self) -> Mesh:
        with self.control() as control:
            return control.mesh()

    def detail(self, node: str) -> NodeDetail:
        with self.control() as control:
            return control.node(node)

    def wait_for(self, node: str, holds: Callable[[NodeDetail], bool]) -> NodeDetail:
        """Wait until what is known of a node is as wanted."""
        wait_until(lambda: self.knows(node) and holds(self.detail(node)), 20, lambda: str(self.mesh()))
        return self.detail(node)

    def knows(self, node: str) -> bool:
        return any(row.name == node for row in self.mesh().nodes)

    def wait_for_parked(self, count: int) -> None:
        wait_until(lambda: self.mesh().parked == count, 20, lambda: f"{self.mesh().parked} are parked")

    def declare(self, node: str, *ids: str, retire: bool = False) -> int:
        """Declare files of these paths; the serial."""
        with self.control() as control:
            return control.declare(node, files(*ids), {}, retire=retire).serial

    def _serve(self) -> None:
        try:
            serve(self.state, stop=self._stop, **self.options)
        except BaseException as error:
            self.failure = error


@contextmanager
def serving(rabbit: Rabbit, state: Path, **options: Any) -> Iterator[Plane]:
    """A control plane that is ready, for the block."""
    plane = Plane(rabbit, state, **options)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def files(*paths: str) -> Document:
    return Document({}, tuple({"kind": "file", "name": path, "content": "x"} for path in paths))


def write_settings(rabbit: Rabbit, state: Path) -> None:
    folder = state / "control"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "control.toml").write_text(
        f'broker = "{rabbit.address}"\n'
        f'management = "{rabbit.management.address}"\n'
        f'account = "control"\npassword = "{CONTROL_PASSWORD}"\n'
        f'fingerprints = ["{rabbit.fingerprint}"]\n'
        f'advertised = "{rabbit.address}"\n'
        f'token_file = "{folder / "founder.token"}"\nnode = "founder"\n'
    )


@dataclass
class Peer:
    """One AMQP connection of somebody; every message is given as it goes over the wire."""

    rabbit: Rabbit
    account: str
    password: str
    connection: Any = field(default=None, init=False)
    channel: Any = field(default=None, init=False)

    def __enter__(self) -> Any:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                self.rabbit.broker_port,
                credentials=pika.PlainCredentials(self.account, self.password),
                ssl_options=pika.SSLOptions(context),
            )
        )
        self.channel = self.connection.channel()
        return self

    def __exit__(self, *_: object) -> None:
        # The broker may have ended it without our having looked.
        with suppress(pika.exceptions.AMQPError):
            self.connection.close()

    def send(self, key: str, body: Any, *, exchange: str = "mesh", **properties: Any) -> None:
        """Publish; a body that is no bytes is written as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.channel.basic_publish(exchange, key, data, pika.BasicProperties(**properties))

    def get(self, queue: str, seconds: float = 20) -> tuple[Any, bytes]:
        """The next message of a queue, acknowledged: its properties and its body."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is not None:
                return properties, body
            self.connection.process_data_events(0.02)
        raise AssertionError(f"nothing came by {queue}")

    def is_cut_off(self) -> bool:
        """Whether the broker has ended the connection."""
        try:
            self.connection.process_data_events(0)
        except pika.exceptions.AMQPError:
            return True
        return bool(self.connection.is_closed)


class Newcomer(Peer):
    """A machine with a token and a key of its own."""

    def __init__(self, rabbit: Rabbit, token: Token, key: SigningKey) -> None:
        super().__init__(rabbit, token.account, token.secret)
        self.token = token
        self.key = key

    def request(self, **fields: Any) -> bytes:
        body = {
            "node": self.token.node,
            "secret": self.token.secret,
            "public_key": base64.b64encode(self.key.public).decode(),
            "profile": {"arch": "x86_64"},
            **fields,
        }
        return json.dumps(body).encode()

    def signed(self, body: bytes, key: SigningKey | None = None) -> dict[str, Any]:
        """The header that proves the key."""
        return {"signature": base64.b64encode((key or self.key).sign(b"enrol\n0\n\n" + body)).decode()}

    def ask(self, body: bytes | None = None, headers: dict[str, Any] | None = None) -> None:
        """Ask to be let in; `answer` waits for what comes of it, in the same connection."""
        self.replies: list[tuple[Any, bytes]] = []
        if not self.channel.consumer_tags:
            self.channel.basic_consume(
                REPLIES, lambda _c, _m, properties, reply: self.replies.append((properties, reply)), auto_ack=True
            )
        self.send(
            "enrol", self.request() if body is None else body, reply_to=REPLIES, correlation_id="c-1", headers=headers
        )

    def answer(self, seconds: float = 20) -> Any:
        deadline = time.monotonic() + seconds
        while not self.replies:
            assert time.monotonic() < deadline, "no answer came"
            self.connection.process_data_events(0.05)
        properties, reply = self.replies.pop()
        assert properties.correlation_id == "c-1"
        return json.loads(reply)

    def enrol(self, body: bytes | None = None, headers: dict[str, Any] | None = None) -> Any:
        self.ask(body, headers)
        return self.answer()

    def node(self, reply: Any) -> Node:
        """The node that an answer makes of it."""
        assert reply["accepted"], reply
        return Node(self.rabbit, reply["node"], reply["password"], self.key)


class Node(Peer):
    """A node that has enrolled."""

    def __init__(self, rabbit: Rabbit, name: str, password: str, key: SigningKey) -> None:
        super().__init__(rabbit, f"node.{name}", password)
        self.name = name
        self.key = key
        self.newest = 0  # the serial that it applied last

    @property
    def queue(self) -> str:
        return f"node.{self.name}"

    def alive(self) -> None:
        self.send("alive", {"node": self.name}, user_id=self.account)

    def report(self, serial: Any = None, *, timestamp: int | None = None, **fields: Any) -> None:
        headers = None if serial is None else {"serial": serial, "version": "7.7"}
        at = int(time.time()) if timestamp is None else timestamp
        self.send("report", {"node": self.name, **fields}, user_id=self.account, headers=headers, timestamp=at)

    def state(
        self, key: str, counter: int, serial: int | None = None, *, by: SigningKey | None = None, **fields: Any
    ) -> None:
        """Publish a signed statement; `by` another key than its own."""
        body = json.dumps({"node": self.name, **fields}).encode()
        signed = f"{key}\n{counter}\n{'' if serial is None else serial}\n".encode() + body
        headers = {"counter": counter, "signature": base64.b64encode((by or self.key).sign(signed)).decode()}
        if serial is not None:
            headers["serial"] = serial
        self.send(key, body, user_id=self.account, headers=headers, timestamp=int(time.time()))

    def declaration(self) -> Declaration:
        """The next declaration that arrives."""
        properties, body = self.get(self.queue)
        signed = json.loads(body)
        data = base64.b64decode(signed["declaration"], validate=True)
        return Declaration(properties, data, base64.b64decode(signed["signature"]), json.loads(data))

    def has_nothing(self) -> bool:
        method, _, _ = self.channel.basic_get(self.queue, auto_ack=True)
        return method is None


@dataclass(frozen=True)
class Declaration:
    """What arrived at a node: the bytes that were signed, and what they say."""

    properties: Any
    data: bytes
    signature: bytes
    says: dict[str, Any]

    @property
    def serial(self) -> int:
        return int(self.says["serial"])
