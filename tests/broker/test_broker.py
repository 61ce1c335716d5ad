"""The session, against a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from agent.broker import (
    DIRECT_REPLY,
    Blocked,
    Delivery,
    Denied,
    LoginRefused,
    Lost,
    Message,
    NoSuchQueue,
    PinMismatch,
    QueueFull,
    QueueInUse,
    Session,
    Unanswered,
    Unreachable,
    Unroutable,
    connect,
)
from agent.control.accounts import Bound, Bounds, BrokerAccounts
from tests.broker.rabbit import Rabbit, wait_until

FULL = Message(
    b"\x00body\xff",
    routing_key="report",
    headers={"serial": 2**52, "version": "1.0", "counter": 0},
    user_id="control",
    type="declaration",
    reply_to="somebody",
    correlation_id="c",
    message_id="m",
    timestamp=1_700_000_000,
    content_type="application/json",
    expiration=60.0,
)


@pytest.fixture
def opened(rabbit: Rabbit) -> Iterator[Callable[..., Session]]:
    """Opens sessions, the control plane's unless told otherwise, and closes them."""
    sessions: list[Session] = []

    def open_one(account: str = "control", password: str = "", **options: float) -> Session:
        login = rabbit.login_as(account, password) if password else rabbit.login
        sessions.append(connect(login, **options))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()


def pump_until(session: Session, holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "pumped in vain"
        session.pump(0.1)


def publish_for_ever(session: Session) -> NoReturn:
    while True:
        session.publish(FULL)


def pump_to_the_end(session: Session, seconds: float = 40) -> Lost:
    with pytest.raises(Lost) as caught:
        pump_until(session, lambda: False, seconds)
    return caught.value


def test_a_message_arrives_as_it_was_sent(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    session, got = opened(), list[Delivery]()
    session.publish(FULL)
    session.consume("control", got.append, exclusive=False, prefetch=10)
    pump_until(session, lambda: bool(got))
    assert got == [Delivery(FULL, got[0].tag, redelivered=False)]
    session.ack(got[0].tag)
    session.close()
    # Whatever had not been acknowledged would be waiting again.
    assert opened().count("control") == 0


def test_absent_properties_are_none(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    session, got = opened(), list[Delivery]()
    session.publish(Message(b"", routing_key="alive"))
    session.consume("control", got.append, exclusive=False, prefetch=10)
    pump_until(session, lambda: bool(got))
    assert got[0].message == Message(b"", routing_key="alive")


def test_what_was_not_acknowledged_comes_again(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    first, got = opened(), list[Delivery]()
    first.publish(FULL)
    first.consume("control", got.append, exclusive=False, prefetch=1)
    pump_until(first, lambda: bool(got))
    first.close()
    second = opened()
    second.consume("control", got.append, exclusive=False, prefetch=1)
    pump_until(second, lambda: len(got) == 2)
    assert got[1].redelivered
    marked = {"x-delivery-count": 1}
    assert got[1].message == replace(got[0].message, headers={**got[0].message.headers, **marked})


def test_a_rejected_message_of_the_control_plane_is_parked(
    opened: Callable[..., Session], accounts: BrokerAccounts
) -> None:
    session, got = opened(), list[Delivery]()
    session.consume("control", got.append, exclusive=False, prefetch=1)
    session.publish(FULL)
    pump_until(session, lambda: bool(got))
    session.reject(got[0].tag)
    wait_until(lambda: session.count("control.parked") == 1, 20)
    assert session.count("control") == 0


def test_no_more_than_the_prefetch_is_handed_over(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    session, got = opened(), list[Delivery]()
    for key in ("alive", "report", "enrol"):
        session.publish(replace(FULL, routing_key=key))
    session.consume("control", got.append, exclusive=False, prefetch=2)
    pump_until(session, lambda: len(got) == 2)
    session.pump(0.3)
    assert [one.message.routing_key for one in got] == ["alive", "report"]
    session.ack(got[0].tag)
    pump_until(session, lambda: len(got) == 3)


def test_a_message_for_nobody_is_returned(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    session = opened()
    with pytest.raises(Unroutable, match=r"no queue for 'node\.nobody'"):
        session.publish(Message(b"", routing_key="node.nobody"), exchange="")
    session.publish(Message(b"", routing_key="node.nobody"), exchange="", mandatory=False)
    session.publish(FULL)


def test_a_full_queue_refuses_and_the_session_goes_on(opened: Callable[..., Session], rabbit: Rabbit) -> None:
    accounts = rabbit.accounts(Bounds(control=Bound(2, 1_000_000)))
    accounts.ensure_topology()
    session = opened()
    with pytest.raises(QueueFull, match="the queue is full"):
        publish_for_ever(session)
    accounts.purge_queue("control")
    session.publish(FULL)


def test_an_exchange_that_is_not_there_is_said(opened: Callable[..., Session], rabbit: Rabbit) -> None:
    with pytest.raises(NoSuchQueue, match="no exchange 'mesh'"):
        opened().publish(FULL)


def test_a_queue_in_exclusive_use_leaves_the_session_able(
    opened: Callable[..., Session], accounts: BrokerAccounts
) -> None:
    accounts.make_node("a", "secret")
    first, second, got = opened("node.a", "secret"), opened("node.a", "secret"), list[Delivery]()
    first.consume("node.a", got.append, exclusive=True, prefetch=1)
    with pytest.raises(QueueInUse, match=r"node\.a"):
        second.consume("node.a", got.append, exclusive=True, prefetch=1)
    second.publish(Message(b"", routing_key="alive"))
    first.close()

    def consumes() -> bool:
        try:
            second.consume("node.a", got.append, exclusive=True, prefetch=1)
        except QueueInUse:
            return False
        return True

    wait_until(consumes, 20)
    opened().publish(Message(b"for a", routing_key="node.a"), exchange="")
    pump_until(second, lambda: bool(got))
    assert got[0].message.body == b"for a"


def test_a_deleted_queue_ends_the_session(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    accounts.make_node("a", "secret")
    session = opened("node.a", "secret")
    session.consume("node.a", lambda _: None, exclusive=True, prefetch=1)
    accounts.delete_queue("node.a")
    assert "the queue was deleted" in str(pump_to_the_end(session))


def test_a_channel_that_the_broker_closes_ends_the_session(
    opened: Callable[..., Session], accounts: BrokerAccounts
) -> None:
    session, got = opened(), list[Delivery]()
    session.publish(FULL)
    session.consume("control", got.append, exclusive=False, prefetch=1)
    pump_until(session, lambda: bool(got))
    session._unacknowledged[99] = (session._consumers[0][2], 99)
    session.ack(99)
    assert "unknown delivery tag 99" in str(pump_to_the_end(session))


def test_a_deleted_account_is_out_at_once(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    accounts.make_node("a", "secret")
    session = opened("node.a", "secret")
    session.consume("node.a", lambda _: None, exclusive=True, prefetch=1)
    accounts.delete_account("node.a")
    assert "user 'node.a' is deleted" in str(pump_to_the_end(session))
    with pytest.raises(LoginRefused, match=r"node\.a"):
        opened("node.a", "secret")


def test_a_changed_password_leaves_the_connection_until_it_is_closed(
    opened: Callable[..., Session], accounts: BrokerAccounts
) -> None:
    accounts.make_node("a", "old")
    session = opened("node.a", "old")
    accounts.set_password("node.a", "new")
    session.publish(Message(b"", routing_key="alive"))

    # The management lists a connection a moment after it is there.
    def closed() -> bool:
        accounts.close_connections_of("node.a")
        try:
            session.pump(0.2)
        except Lost:
            return True
        return False

    wait_until(closed, 20)
    with pytest.raises(LoginRefused):
        opened("node.a", "old")
    opened("node.a", "new")


def test_too_many_connections_are_said(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    accounts.make_node("a", "secret")
    with pytest.raises(Denied, match="too many connections"):
        [opened("node.a", "secret") for _ in range(10)]


def test_an_account_without_rights_is_said(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    accounts.set_password("nobody", "secret")
    with pytest.raises(Denied, match="no rights"):
        opened("nobody", "secret")


def test_an_unknown_certificate_is_not_logged_in_to(rabbit: Rabbit) -> None:
    with pytest.raises(PinMismatch, match=rabbit.fingerprint):
        connect(replace(rabbit.login, pins=frozenset({"0" * 64})))


def test_any_of_several_pins_will_do(rabbit: Rabbit) -> None:
    connect(replace(rabbit.login, pins=frozenset({"0" * 64, rabbit.fingerprint}))).close()


def test_a_call_from_another_thread_runs_on_the_sessions_own(opened: Callable[..., Session]) -> None:
    session, ran_on = opened(), list[int]()
    thread = threading.Thread(target=session.call, args=(lambda: ran_on.append(threading.get_ident()),))
    thread.start()
    pump_until(session, lambda: bool(ran_on))
    thread.join()
    assert ran_on == [threading.get_ident()]


def test_a_call_may_use_the_session(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    session, got = opened(), list[Delivery]()
    session.consume("control", got.append, exclusive=False, prefetch=1)
    session.call(lambda: session.publish(FULL))
    pump_until(session, lambda: bool(got))


def test_a_delivery_may_use_the_session(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    session, got = opened(), list[bytes]()

    def on_delivery(delivery: Delivery) -> None:
        got.append(delivery.message.body)
        session.ack(delivery.tag)
        if len(got) < 3:
            session.publish(Message(b"again", routing_key="report"))

    session.consume("control", on_delivery, exclusive=False, prefetch=1)
    session.publish(FULL)
    pump_until(session, lambda: len(got) == 3)


def test_what_a_call_raises_comes_out_of_pump(opened: Callable[..., Session]) -> None:
    session = opened()
    session.call(partial(list[int]().pop, 0))
    with pytest.raises(IndexError):
        pump_until(session, lambda: False)


def test_a_call_on_a_session_that_is_over_is_told_so(opened: Callable[..., Session]) -> None:
    session = opened()
    session.close()
    session.close()
    with pytest.raises(Lost):
        session.call(lambda: None)
    with pytest.raises(Lost):
        session.pump(0)
    with pytest.raises(Lost):
        session.publish(FULL)


def test_a_request_is_answered_by_direct_reply(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    answering = threading.Thread(target=answer_enrolments, args=(opened(), 1))
    accounts.make_join("a", "secret")
    session = opened("join.a", "secret")
    answering.start()
    reply = session.request(Message(b"let me in", routing_key="enrol"), timeout=20)
    answering.join()
    assert reply.body == b"answer to let me in"


def test_a_request_that_nobody_answers_ends(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    session = opened()
    with pytest.raises(Unanswered, match=r"for 0\.2 s"):
        session.request(Message(b"", routing_key="enrol"), timeout=0.2)
    session.publish(FULL)


def test_an_answer_to_one_who_left_goes_nowhere(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    asker, answerer, got = opened(), opened(), list[Delivery]()
    with pytest.raises(Unanswered):
        asker.request(Message(b"", routing_key="enrol"), timeout=0)
    asker.close()
    answerer.consume("control", got.append, exclusive=False, prefetch=1)
    pump_until(answerer, lambda: bool(got))
    answerer.publish(Message(b"", routing_key=got[0].message.reply_to or ""), exchange="", mandatory=False)


def answer_enrolments(session: Session, count: int) -> None:
    """Play the control plane until `count` requests were answered, all of them after the last has come."""
    got: list[Delivery] = []
    session.consume("control", got.append, exclusive=False, prefetch=count)
    pump_until(session, lambda: len(got) == count)
    for delivery in got:
        asked = delivery.message
        assert asked.reply_to is not None
        assert asked.reply_to.startswith(DIRECT_REPLY)
        reply = Message(b"answer to " + asked.body, asked.reply_to, correlation_id=asked.correlation_id)
        session.publish(reply, exchange="", mandatory=False)
        session.ack(delivery.tag)


def test_two_holders_of_one_token_each_get_their_own_answer(
    opened: Callable[..., Session], accounts: BrokerAccounts
) -> None:
    accounts.make_join("a", "secret")
    answering = threading.Thread(target=answer_enrolments, args=(opened(), 2))
    answers: dict[bytes, bytes] = {}

    def ask(body: bytes) -> None:
        session = opened("join.a", "secret")
        answers[body] = session.request(Message(body, routing_key="enrol"), timeout=20).body

    asking = [threading.Thread(target=ask, args=(body,)) for body in (b"one", b"two")]
    for thread in (answering, *asking):
        thread.start()
    for thread in (answering, *asking):
        thread.join()
    assert answers == {b"one": b"answer to one", b"two": b"answer to two"}


def test_a_broker_that_ends_is_noticed_while_idle(opened: Callable[..., Session], rabbit: Rabbit) -> None:
    session = opened()
    rabbit.kill()
    assert str(rabbit.broker_port) in str(pump_to_the_end(session))
    with pytest.raises(Unreachable, match="nothing listens"):
        connect(rabbit.login)


def test_a_silent_broker_bounds_every_question(
    opened: Callable[..., Session], rabbit: Rabbit, accounts: BrokerAccounts
) -> None:
    session = opened(patience=0.5)
    rabbit.freeze()
    try:
        with pytest.raises(Lost, match=r"has not answered for 0\.5 s"):
            session.publish(FULL)
        with pytest.raises(Lost, match=r"has not answered for 0\.5 s"):
            session.pump(1)
        session.close()
    finally:
        rabbit.thaw()


def test_a_silent_broker_is_given_up_by_heartbeat(opened: Callable[..., Session], rabbit: Rabbit) -> None:
    session = opened(heartbeat=2)
    rabbit.freeze()
    try:
        assert "fell silent" in str(pump_to_the_end(session))
    finally:
        rabbit.thaw()


def test_an_idle_session_is_kept_by_its_heartbeat(opened: Callable[..., Session], accounts: BrokerAccounts) -> None:
    session = opened(heartbeat=1)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        session.pump(1)
    session.publish(FULL)


def test_an_alarm_of_the_broker_bounds_a_publish_and_is_named(
    opened: Callable[..., Session], rabbit: Rabbit, accounts: BrokerAccounts
) -> None:
    session = opened(patience=1.0)
    rabbit.control("set_disk_free_limit", "1000000000000000")
    try:
        with pytest.raises(Blocked, match="low on disk"):
            publish_for_ever(session)
    finally:
        rabbit.control("set_disk_free_limit", "10MB")


def test_a_signal_ends_the_waiting(opened: Callable[..., Session]) -> None:
    session = opened()

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            pump_until(session, lambda: False)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_only_the_declared_ports_are_open_and_only_one_to_all(rabbit: Rabbit) -> None:
    declared = {
        ("*", rabbit.broker_port),
        ("127.0.0.1", rabbit.management_port),
        ("127.0.0.1", rabbit.epmd_port),
        ("[::1]", rabbit.epmd_port),
        ("127.0.0.1", rabbit.distribution_port),
    }
    listed = subprocess.run(["ss", "-Hltnp"], check=True, capture_output=True, text=True).stdout
    ours = {f"pid={pid}," for pid in rabbit.processes()}
    found = set()
    for line in listed.splitlines():
        if any(pid in line for pid in ours):
            address, _, port = line.split()[3].rpartition(":")
            found.add((address.replace("[::]", "*"), int(port)))
    assert found == declared


def test_no_account_is_made_but_control_and_none_but_root_sees_its_password(rabbit: Rabbit) -> None:
    assert rabbit.account_names() == {"control"}
    assert (rabbit.folder / "etc" / "rabbitmq.conf").stat().st_mode & 0o007 == 0
    for pid in rabbit.processes():
        with suppress(FileNotFoundError):
            assert b"password-of-control" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_second_broker_keeps_what_it_confirmed_and_leaves_nothing_running(rabbit: Rabbit) -> None:
    second, got = Rabbit(), list[Delivery]()
    try:
        second.start()
        second.accounts().ensure_topology()
        second.accounts().make_node("a", "secret")
        session = connect(second.login)
        session.publish(FULL)
        session.publish(Message(b"declared", routing_key="node.a"), exchange="")
        session.close()
        second.restart()
        session = connect(second.login)
        session.consume("control", got.append, exclusive=False, prefetch=10)
        session.consume("node.a", got.append, exclusive=False, prefetch=10)
        pump_until(session, lambda: len(got) == 2)
        session.close()
        assert {one.message.body for one in got} == {FULL.body, b"declared"}
        assert len(second.processes()) > 1
        second.stop()
        assert second.processes() == []
    finally:
        second.remove()
    connect(rabbit.login).close()
