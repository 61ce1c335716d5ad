"""What the control plane makes of the broker, and what a hostile node or token can do with it: nothing more."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pika
import pika.exceptions
import pytest

from agent.broker import Delivery, Lost, Message, NoSuchQueue, PinMismatch, QueueFull, Session, connect
from agent.broker.pins import pinned_context
from agent.control.accounts import Bound, Bounds, BrokerAccounts
from agent.errors import Refused, Unavailable
from tests.broker.rabbit import Rabbit, wait_until

NAMES = ("a", "ab", "a-b", "b")


@pytest.fixture
def control(rabbit: Rabbit, accounts: BrokerAccounts) -> Iterator[Session]:
    """The control plane's session; the nodes of NAMES and a token for `t` have their accounts."""
    for name in NAMES:
        accounts.make_node(name, f"password-{name}")
    accounts.make_join("t", "password-t")
    session = connect(rabbit.login)
    yield session
    session.close()


class Hostile:
    """An account that asks for what it should not get. Each question has a channel of its own."""

    def __init__(self, rabbit: Rabbit, account: str, password: str) -> None:
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            rabbit.broker_port,
            credentials=pika.PlainCredentials(account, password),
            ssl_options=pika.SSLOptions(pinned_context(rabbit.pins, "the broker", lambda _: None)),
        )
        self.connection = pika.BlockingConnection(parameters)

    def tries(self, question: Callable[[Any], object]) -> str:
        """What the broker says: empty when it does it."""
        channel = self.connection.channel()
        channel.confirm_delivery()
        try:
            question(channel)
        except pika.exceptions.ChannelClosedByBroker as refusal:
            return str(refusal.reply_text)
        channel.close()
        return ""


@pytest.fixture
def node(rabbit: Rabbit, control: Session) -> Iterator[Hostile]:
    hostile = Hostile(rabbit, "node.a", "password-a")
    yield hostile
    hostile.connection.close()


@pytest.fixture
def token(rabbit: Rabbit, control: Session) -> Iterator[Hostile]:
    hostile = Hostile(rabbit, "join.t", "password-t")
    yield hostile
    hostile.connection.close()


def publish(exchange: str, key: str, **properties: Any) -> Callable[[Any], object]:
    return lambda channel: channel.basic_publish(exchange, key, b"hostile", pika.BasicProperties(**properties))


FORBIDDEN: dict[str, Callable[[Any], object]] = {
    "reading another's queue": lambda c: c.basic_consume("node.b", print),
    "reading a queue whose name begins with one's own": lambda c: c.basic_consume("node.ab", print),
    "reading a queue whose name has one's own before a hyphen": lambda c: c.basic_consume("node.a-b", print),
    "reading the control plane's queue": lambda c: c.basic_consume("control", print),
    "reading what is parked": lambda c: c.basic_consume("control.parked", print),
    "getting from another's queue": lambda c: c.basic_get("node.ab"),
    "purging another's queue": lambda c: c.queue_purge("node.ab"),
    "purging the control plane's queue": lambda c: c.queue_purge("control"),
    "declaring a queue": lambda c: c.queue_declare("mine"),
    "declaring a queue named by the broker": lambda c: c.queue_declare("", exclusive=True),
    "declaring one's own queue": lambda c: c.queue_declare("node.a", durable=True),
    "declaring a queue that looks like a reply": lambda c: c.queue_declare("amq.rabbitmq.reply-to.mine"),
    "deleting one's own queue": lambda c: c.queue_delete("node.a"),
    "deleting another's queue": lambda c: c.queue_delete("node.b"),
    "deleting the control plane's queue": lambda c: c.queue_delete("control"),
    "binding one's own queue": lambda c: c.queue_bind("node.a", "mesh", "report"),
    "binding by every key": lambda c: c.queue_bind("node.a", "mesh", "#"),
    "unbinding the control plane's queue": lambda c: c.queue_unbind("control", "mesh", "enrol"),
    "declaring an exchange": lambda c: c.exchange_declare("mine", "topic"),
    "deleting the exchange": lambda c: c.exchange_delete("mesh"),
    "binding exchanges": lambda c: c.exchange_bind("amq.topic", "mesh", "#"),
    "publishing to the default exchange": publish("", "node.b"),
    "publishing to the control plane's queue past the exchange": publish("", "control"),
    "publishing to the parked": publish("", "control.parked"),
    "publishing to one's own queue": publish("", "node.a"),
    "answering in somebody's place": publish("", "amq.rabbitmq.reply-to.g1h2AA=="),
    "publishing to an exchange of the broker's": publish("amq.topic", "report"),
    "publishing to the broker's log": publish("amq.rabbitmq.trace", "report"),
    "publishing to another node's name": publish("mesh", "node.b"),
    "publishing to one's own name": publish("mesh", "node.a"),
    "publishing by an unknown key": publish("mesh", "control"),
    "publishing by an empty key": publish("mesh", ""),
    "publishing by a key with an allowed one inside": publish("mesh", "report.x"),
    "publishing by an allowed key and a line break": publish("mesh", "report\n"),
    "publishing by a pattern": publish("mesh", "#"),
    "speaking as another node": publish("mesh", "enrol", user_id="node.b"),
    "speaking as the control plane": publish("mesh", "enrol", user_id="control"),
    "having the answer sent to nobody's direct reply": publish("mesh", "enrol", reply_to="amq.rabbitmq.reply-to"),
}


def allowed(hostile: Hostile, control: Session) -> list[str]:
    """What of FORBIDDEN the broker did all the same, and the queues where it left something."""
    return [what for what, question in FORBIDDEN.items() if not hostile.tries(question)] + [
        queue
        for queue in ("control", "control.parked", *(f"node.{name}" for name in NAMES))
        if control.count(queue) != 0
    ]


def test_a_node_may_do_nothing_that_is_forbidden(node: Hostile, control: Session) -> None:
    assert allowed(node, control) == []


def test_a_token_may_do_nothing_that_is_forbidden(token: Hostile, control: Session) -> None:
    assert allowed(token, control) == []


@pytest.mark.parametrize(
    "question",
    [publish("mesh", "report"), publish("mesh", "alive"), lambda c: c.basic_consume("node.t", print)],
    ids=["report", "alive", "consume its node's queue"],
)
def test_a_token_may_not_speak_for_its_node(
    question: Callable[[Any], object], token: Hostile, accounts: BrokerAccounts
) -> None:
    accounts.make_node("t", "another")
    assert "ACCESS_REFUSED" in token.tries(question)


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_further_routing_keys_reach_nobody(header: str, node: Hostile, control: Session) -> None:
    """RabbitMQ does not ask the topic permissions about these, so no queue may hang on them."""
    keys = ["node.b", "node.a", "control", "control.parked", "alive", "#"]
    node.tries(publish("mesh", "report", headers={header: keys}))
    wait_until(lambda: control.count("control") == 1, 20)
    assert [control.count(queue) for queue in ("control.parked", "node.a", "node.b")] == [0, 0, 0]


def test_a_node_may_report_and_read_its_own_queue(node: Hostile, control: Session) -> None:
    for key in ("enrol", "report", "alive"):
        assert node.tries(publish("mesh", key, user_id="node.a")) == ""
    control.publish(Message(b"declared", routing_key="node.a"), exchange="")
    assert node.tries(lambda channel: channel.basic_consume("node.a", print, exclusive=True)) == ""


def test_a_missing_user_id_and_a_reply_to_a_queue_are_the_control_planes_to_see(
    node: Hostile, control: Session
) -> None:
    got: list[Delivery] = []
    control.consume("control", got.append, exclusive=False, prefetch=10)
    assert node.tries(publish("mesh", "report")) == ""
    assert node.tries(publish("mesh", "enrol", reply_to="node.b")) == ""
    wait_until(lambda: control.pump(0.1) or len(got) == 2, 20)  # type: ignore[func-returns-value]
    assert [(one.message.user_id, one.message.reply_to) for one in got] == [(None, None), (None, "node.b")]


def test_a_node_can_not_use_up_the_brokers_channels(rabbit: Rabbit, control: Session) -> None:
    hostile = Hostile(rabbit, "node.a", "password-a")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="maximum allowed user limit"):
        [hostile.connection.channel() for _ in range(50)]


def test_a_message_beyond_the_largest_is_refused(node: Hostile) -> None:
    body = bytes(16 * 1024 * 1024 + 1)
    assert "larger than configured max size" in node.tries(
        lambda channel: channel.basic_publish("mesh", "report", body)
    )


class Undecodable(pika.BasicProperties):
    """Persistent, with a header of a time that Python has no date for."""

    def encode(self) -> list[bytes]:
        table = b"\x01x" + b"T" + b"\xff" * 8
        return [
            struct.pack(">H", self.FLAG_HEADERS | self.FLAG_DELIVERY_MODE),
            struct.pack(">I", len(table)),
            table,
            b"\x02",
        ]


def test_a_message_that_no_client_can_decode_is_parked_and_the_next_comes(rabbit: Rabbit) -> None:
    accounts = rabbit.accounts(Bounds(deliveries=3))
    accounts.ensure_topology()
    accounts.make_node("a", "password-a")
    hostile, watcher, got = Hostile(rabbit, "node.a", "password-a"), connect(rabbit.login), list[Delivery]()
    assert hostile.tries(lambda channel: channel.basic_publish("mesh", "report", b"poison", Undecodable())) == ""
    assert hostile.tries(publish("mesh", "report", type="next")) == ""
    losses = 0
    while not got:
        session = connect(rabbit.login)
        try:
            session.consume("control", got.append, exclusive=False, prefetch=1)
            while not got:
                session.pump(0.1)
        except Lost:
            losses += 1
            assert losses < 10
        finally:
            session.close()
    assert losses > 0
    assert got[0].message.type == "next"
    wait_until(lambda: watcher.count("control.parked") == 1, 20)
    watcher.close()
    hostile.connection.close()


def test_everything_can_be_made_again(rabbit: Rabbit, accounts: BrokerAccounts, control: Session) -> None:
    control.publish(Message(b"kept", routing_key="node.a"), exchange="")
    for _ in range(2):
        accounts.ensure_topology()
        accounts.make_node("a", "password-a")
        accounts.make_join("t", "password-t")
    assert control.count("node.a") == 1
    for _ in range(2):
        accounts.delete_account("node.a")
        accounts.delete_account("join.t")
        accounts.close_connections_of("node.a")
        accounts.purge_queue("node.a")
        accounts.delete_queue("node.a")
    with pytest.raises(NoSuchQueue):
        control.count("node.a")
    assert rabbit.account_names() == {"control", "node.ab", "node.a-b", "node.b"}


def test_a_purge_empties_one_queue(accounts: BrokerAccounts, control: Session) -> None:
    for queue in ("node.a", "node.ab"):
        control.publish(Message(b"", routing_key=queue), exchange="")
    accounts.purge_queue("node.a")
    assert (control.count("node.a"), control.count("node.ab")) == (0, 1)


def test_a_queue_that_is_there_but_different_is_named(rabbit: Rabbit, accounts: BrokerAccounts) -> None:
    other = rabbit.accounts(replace(Bounds(), control=Bound(7, 7)))
    with pytest.raises(Refused, match=r"a queue control that is not as .* inequivalent arg 'x-max-length"):
        other.ensure_topology()


def test_a_full_node_queue_drops_its_oldest(rabbit: Rabbit) -> None:
    accounts = rabbit.accounts(Bounds(node=Bound(2, 1_000_000)))
    accounts.ensure_topology()
    accounts.make_node("a", "secret")
    control, got = connect(rabbit.login), list[bytes]()
    for body in (b"1", b"2", b"3"):
        control.publish(Message(body, routing_key="node.a"), exchange="")
    control.consume("node.a", lambda one: got.append(one.message.body), exclusive=True, prefetch=10)
    wait_until(lambda: control.pump(0.1) or len(got) == 2, 20)  # type: ignore[func-returns-value]
    assert got == [b"2", b"3"]
    control.close()


def test_a_full_control_queue_refuses_a_node_in_words(rabbit: Rabbit) -> None:
    accounts = rabbit.accounts(Bounds(control=Bound(1, 1_000_000)))
    accounts.ensure_topology()
    accounts.make_node("a", "secret")
    node = connect(rabbit.login_as("node.a", "secret"))
    # A quorum queue notices a little late that it is full.
    publish_until_refused(node, Message(b"", routing_key="alive", user_id="node.a"))
    node.close()


def publish_until_refused(session: Session, message: Message) -> None:
    for _ in range(10):
        try:
            session.publish(message)
        except QueueFull:
            return
    pytest.fail("a queue of one took ten messages")


def test_an_empty_password_is_refused(rabbit: Rabbit, accounts: BrokerAccounts) -> None:
    with pytest.raises(Refused, match=r"node\.a would get an empty password"):
        accounts.make_node("a", "")
    assert rabbit.account_names() == {"control"}


def test_a_wrong_password_is_said(rabbit: Rabbit) -> None:
    accounts = BrokerAccounts(replace(rabbit.management, password="wrong"), Bounds())
    with pytest.raises(Unavailable, match=r"does not take the password of control.*control\.toml"):
        accounts.ensure_topology()


def test_another_certificate_is_told_nothing(rabbit: Rabbit) -> None:
    accounts = BrokerAccounts(replace(rabbit.management, pins=frozenset({"0" * 64})), Bounds())
    with pytest.raises(PinMismatch, match=rabbit.fingerprint):
        accounts.has_queue("control")


def test_nothing_listening_is_said(rabbit: Rabbit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    management = replace(rabbit.management, address=f"https://127.0.0.1:{port}")
    with pytest.raises(Unavailable, match=f"nothing listens at https://127.0.0.1:{port}"):
        BrokerAccounts(management, Bounds()).has_queue("control")


def test_what_is_no_management_api_is_said(rabbit: Rabbit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        management = replace(rabbit.management, address=f"https://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(Unavailable, match="does not answer as one"):
            BrokerAccounts(management, Bounds()).has_queue("control")
        thread.join()
