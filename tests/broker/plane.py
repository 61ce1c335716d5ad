"""A control plane on a real broker, and a peer that speaks as another implementation would: raw bodies, by pika."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika

from agent.control.config import Settings
from agent.control.plane import Control, open_control
from agent.control.service import serve
from agent.control.store import Store, open_store
from agent.envelope import SigningKey
from agent.token import Token
from tests.broker.rabbit import CONTROL_PASSWORD, Rabbit, wait_until

REPLIES = "amq.rabbitmq.reply-to"


class Plane:
    """`control serve` in a thread, on a state folder of its own."""

    def __init__(self, rabbit: Rabbit, state: Path, **options: Any) -> None:
        self.rabbit = rabbit
        self.state = state
        self.options = options
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        write_settings(rabbit, state)

    @property
    def ready_file(self) -> Path:
        return self.state / "run" / "control.ready"

    @property
    def founder_token(self) -> Path:
        return self.state / "control" / "founder.token"

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._serve, name="control")
        self._thread.start()
        wait_until(lambda: self.ready_file.exists() or self.failure is not None, 30)
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)
            assert not self._thread.is_alive()
            self._thread = None

    def control(self, **options: Any) -> Control:
        return open_control(self.state, **options)

    def store(self) -> Store:
        return open_store(self.state)

    def token(self, node: str) -> Token:
        with self.control() as control:
            return control.create_token(node)

    def join(self, node: str) -> Node:
        """A node that has enrolled, and has not yet spoken."""
        newcomer = Newcomer(self.rabbit, self.token(node))
        with newcomer:
            reply = newcomer.enrol()
        assert reply["accepted"], reply
        return Node(self.rabbit, reply["node"], reply["password"], newcomer.key)

    def detail(self, node: str) -> Any:
        with self.control() as control:
            return control.node(node)

    def wait_for(self, node: str, holds: Callable[[Any], bool]) -> Any:
        """Wait until what is known of a node is as wanted."""
        wait_until(lambda: holds(self.detail(node)), 20, lambda: str(self.detail(node)))
        return self.detail(node)

    def wait_for_parked(self, count: int) -> None:
        def parked() -> int:
            with self.control() as control:
                return control.mesh().parked

        wait_until(lambda: parked() == count, 20, lambda: f"{parked()} are parked")

    def _serve(self) -> None:
        try:
            serve(self.state, stop=self._stop, **self.options)
        except BaseException as error:
            self.failure = error


def write_settings(rabbit: Rabbit, state: Path, node: str = "founder") -> None:
    folder = state / "control"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "control.toml").write_text(
        f'broker = "{rabbit.address}"\n'
        f'management = "{rabbit.management.address}"\n'
        f'account = "control"\npassword = "{CONTROL_PASSWORD}"\n'
        f'fingerprints = ["{rabbit.fingerprint}"]\n'
        f'advertised = ""\nadvertised_port = {rabbit.broker_port}\n'
        f'token_file = "{folder / "founder.token"}"\nnode = "{node}"\n'
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
        if self.connection.is_open:
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


class Newcomer(Peer):
    """A machine with a token and a fresh key."""

    def __init__(self, rabbit: Rabbit, token: Token, key: SigningKey | None = None) -> None:
        super().__init__(rabbit, token.account, token.secret)
        self.token = token
        self.key = key or SigningKey(
            base64.b64decode("a2V5LW9mLWEtbmV3LW1hY2hpbmUsIDMyIGJ5dGVzLi4=")[:32].ljust(32, b".")
        )

    def request(self, **fields: Any) -> bytes:
        body = {
            "node": self.token.node,
            "secret": self.token.secret,
            "public_key": base64.b64encode(self.key.public).decode(),
            "profile": {"arch": "x86_64"},
            **fields,
        }
        return json.dumps(body).encode()

    def signature(self, body: bytes, key: SigningKey | None = None) -> str:
        return base64.b64encode((key or self.key).sign(b"enrol\n0\n\n" + body)).decode()

    def enrol(self, body: bytes | None = None, headers: dict[str, Any] | None = None, seconds: float = 20) -> Any:
        """Ask to be let in, and wait for the answer."""
        replies: list[tuple[Any, bytes]] = []
        tag = self.channel.basic_consume(
            REPLIES, lambda _c, _m, properties, body: replies.append((properties, body)), auto_ack=True
        )
        self.send("enrol", body or self.request(), reply_to=REPLIES, correlation_id="c-1", headers=headers)
        deadline = time.monotonic() + seconds
        while not replies:
            assert time.monotonic() < deadline, "no answer came"
            self.connection.process_data_events(0.05)
        self.channel.basic_cancel(tag)
        properties, answer = replies[0]
        assert properties.correlation_id == "c-1"
        return json.loads(answer)


class Node(Peer):
    """A node that has enrolled."""

    def __init__(self, rabbit: Rabbit, name: str, password: str, key: SigningKey) -> None:
        super().__init__(rabbit, f"node.{name}", password)
        self.name = name
        self.key = key

    @property
    def queue(self) -> str:
        return f"node.{self.name}"

    def alive(self, **properties: Any) -> None:
        self.send("alive", {"node": self.name}, **{"user_id": self.account, **properties})

    def report(self, serial: Any = None, *, timestamp: int | None = None, **fields: Any) -> None:
        headers = None if serial is None else {"serial": serial, "version": "7.7"}
        at = int(time.time()) if timestamp is None else timestamp
        self.send("report", {"node": self.name, **fields}, user_id=self.account, headers=headers, timestamp=at)

    def declaration(self) -> dict[str, Any]:
        """The next declaration that arrives."""
        properties, body = self.get(self.queue)
        assert properties.type == "declaration"
        signed = json.loads(body)
        return {
            **json.loads(base64.b64decode(signed["declaration"])),
            "bytes": base64.b64decode(signed["declaration"]),
            "signature": base64.b64decode(signed["signature"]),
        }

    def has_nothing(self) -> bool:
        method, _, _ = self.channel.basic_get(self.queue, auto_ack=False)
        return method is None


def settings_of(state: Path) -> Settings:
    from agent.control.config import read_settings

    return read_settings(state)
