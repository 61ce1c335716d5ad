"""`control serve` as a process among others: away brokers, second ones, stops, kills."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from agent.control.service import serve
from agent.control.store import open_store
from agent.control.turn import lock_path
from agent.errors import Fatal, Refused
from agent.host import locks
from tests.broker.plane import Plane, serving, write_settings
from tests.broker.rabbit import wait_until

BURST = 6_000
PROGRAM = """
import sys, threading
from pathlib import Path
from agent.control.service import serve, stop_on_signals
stop = threading.Event()
stop_on_signals(stop)
serve(Path(sys.argv[1]), stop=stop)
"""


@pytest.fixture
def plane(rabbit, ground):
    with serving(rabbit, ground) as plane:
        yield plane


@pytest.fixture
def process(rabbit, ground):
    """Starts `serve` as a process, and waits until it is ready; whatever is left of them is killed."""
    write_settings(rabbit, ground)
    started = []

    def start():
        one = subprocess.Popen([sys.executable, "-c", PROGRAM, str(ground)])
        started.append(one)
        wait_until(lambda: (ground / "control" / "ready").exists() or one.poll() is not None, 30)
        assert one.poll() is None
        return one

    yield start
    for one in started:
        one.kill()
        one.wait()


def test_it_is_ready_once_and_says_so_once(rabbit, ground, caplog):
    caplog.set_level(logging.INFO, "agent")
    plane = Plane(rabbit, ground)
    for times in (1, 2):
        plane.start()
        plane.stop()
        assert caplog.messages.count("The control plane is ready.") == times
    assert plane.ready_file.stat().st_mode & 0o777 == 0o600
    assert len(caplog.messages) == 2


def test_it_is_not_ready_before_it_is(rabbit, ground):
    plane = Plane(rabbit, ground)
    plane.start()
    plane.stop()
    rabbit.stop()
    plane.begin()
    try:
        wait_until(lambda: not plane.ready_file.exists(), 20)
        rabbit.start()
        wait_until(plane.ready_file.exists, 60)
    finally:
        plane.stop()


def test_a_broker_that_is_away_is_waited_for_and_spoken_of_once(rabbit, ground, caplog):
    caplog.set_level(logging.INFO, "agent")
    with serving(rabbit, ground) as plane:
        node = plane.join("a")
        caplog.clear()
        rabbit.stop()
        wait_until(lambda: "goes on trying" in caplog.text, 20)
        rabbit.start()
        wait_until(lambda: "is back" in caplog.text, 60)
        with node:
            node.report(0, carried=[80])
            plane.wait_for("a", lambda detail: detail.carried == (80,))
    assert caplog.messages.count("The broker is back; the control plane serves again.") == 1
    assert len(set(caplog.messages)) == len(caplog.messages)
    assert plane.failure is None


def test_a_second_one_waits_says_so_once_and_takes_over(plane, rabbit, caplog):
    caplog.set_level(logging.INFO, "agent")
    second = Plane(rabbit, plane.state)
    second.begin()
    try:
        wait_until(lambda: "this one waits" in caplog.text, 20)
        assert f"served by process {os.getpid()}" in caplog.text
        with plane.join("a") as node:
            node.alive()
            plane.wait_for("a", lambda detail: detail.row.last_seen)
            ready = plane.ready_file.stat().st_mtime_ns
            plane.stop()
            wait_until(lambda: plane.ready_file.exists() and plane.ready_file.stat().st_mtime_ns != ready, 20)
            node.report(0, carried=[80])
            plane.wait_for("a", lambda detail: detail.carried == (80,))
    finally:
        second.stop()
    assert second.failure is None
    assert caplog.text.count("this one waits") == 1


def test_one_that_waits_can_be_stopped(plane, rabbit, caplog):
    caplog.set_level(logging.INFO, "agent")
    second = Plane(rabbit, plane.state)
    second.begin()
    wait_until(lambda: "this one waits" in caplog.text, 20)
    second.stop()
    assert second.failure is None
    assert plane.ready_file.exists()


def test_only_a_founder_serves(ground):
    with pytest.raises(Refused, match="not the founder"):
        serve(ground, stop=threading.Event())


def test_a_newer_store_is_refused(rabbit, ground):
    write_settings(rabbit, ground)
    store = open_store(ground, migrate=True)
    store._database.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(Refused, match="schema 99"):
        serve(ground, stop=threading.Event())


def test_a_lost_signing_key_ends_it(rabbit, ground):
    plane = Plane(rabbit, ground)
    plane.start()
    plane.stop()
    (ground / "control" / "keys" / "1.seed").unlink()
    with pytest.raises(Fatal, match=r"1\.seed"):
        plane.start()


def test_a_wrong_password_is_waited_out(rabbit, ground, caplog):
    plane = Plane(rabbit, ground)
    settings = ground / "control" / "control.toml"
    right = settings.read_text()
    settings.write_text(right.replace("password-of-control", "wrong"))
    plane.begin()
    try:
        wait_until(lambda: "does not take the password" in caplog.text, 20)
        assert not plane.died()
    finally:
        plane.stop()
    assert plane.failure is None


def test_silence_is_measured_by_the_interval(rabbit, ground):
    now = [1_000_000.0]
    with serving(rabbit, ground, clock=lambda: now[0], alive_interval=10.0, missed=2) as plane:
        with plane.newcomer("a", clock=lambda: now[0]) as newcomer:
            reply = newcomer.enrol()
        with newcomer.node(reply) as node:
            node.alive()
            plane.wait_for("a", lambda detail: detail.row.last_seen)
        for seconds, presence in [(20, "here"), (21, "out of touch")]:
            with plane.control(clock=lambda at=now[0] + seconds: at) as control:
                assert control.mesh().nodes[0].presence.value == presence


def test_a_store_that_is_busy_costs_no_message(plane, caplog):
    with plane.join("a") as node:
        store = open_store(plane.state)
        with store.transaction():
            node.report(0, carried=[80])
            wait_until(lambda: "in use by another process" in caplog.text, 30)
        store.close()
        plane.wait_for("a", lambda detail: detail.carried == (80,))
    assert plane.mesh().parked == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(process, number):
    one = process()
    one.send_signal(number)
    assert one.wait(20) == 0


def test_a_signal_ends_it_even_while_the_broker_stands_still(process, rabbit, ground):
    one = process()
    store = open_store(ground)
    store.nodes.enrol("a", b"k" * 32, b"", {}, 0.0)
    store.close()
    rabbit.freeze()
    try:
        plane = Plane(rabbit, ground)
        plane.declare("a", "/etc/x")  # it publishes, and waits for a confirmation
        one.send_signal(signal.SIGTERM)
        assert one.wait(20) in (0, -signal.SIGALRM)
    finally:
        rabbit.thaw()


def test_bursts_survive_a_hand_over_each(rabbit, ground):
    """Two processes; five times the one that serves is killed under 6,000 statements, and each of them is committed."""
    write_settings(rabbit, ground)
    plane = Plane(rabbit, ground)
    open_store(ground, migrate=True).close()
    started = []

    def start():
        started.append(subprocess.Popen([sys.executable, "-c", PROGRAM, str(ground)]))

    def serving_one():
        holder = locks.holder(lock_path(ground))
        return next((one for one in started if holder and one.pid == holder.process.pid), None)

    try:
        start()
        wait_until(plane.ready_file.exists, 30)
        start()
        store = open_store(ground)
        store._database.execute("CREATE TABLE told (port TEXT)")
        store._database.execute(
            "CREATE TRIGGER tell AFTER UPDATE ON node BEGIN INSERT INTO told VALUES (new.carried); END"
        )

        def told():
            return store._database.row("SELECT count(DISTINCT port) FROM told WHERE port <> '[]'")[0]

        with plane.join("a") as node:
            for done in range(0, 5 * BURST, BURST):
                for at in range(1, BURST + 1):
                    node.report(0, carried=[done + at])
                    if at == BURST // 2:
                        node.connection.process_data_events(0)
                        wait_until(lambda: serving_one() is not None, 30)
                        one = serving_one()
                        one.kill()
                        one.wait()
                        start()
                node.connection.process_data_events(0)
                wait_until(lambda: told() == done + BURST, 120, lambda: f"{told()} of {done + BURST}")  # noqa: B023
        store.close()
        assert plane.mesh().parked == 0
        wait_until(lambda: rabbit.queue_length("control") == 0, 20)
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_a_kill_loses_nothing(process, rabbit, ground):
    """Killed again and again under a burst; the last word of each kind is known in the end."""
    one = process()
    plane = Plane(rabbit, ground)
    with plane.join("a") as node:
        for at in range(1, 401):
            node.report(0, carried=[at])
            if at % 100 == 0:
                serial = plane.declare("a", f"/etc/{at}")
                one.kill()
                one.wait()
                (ground / "control" / "ready").unlink()
                one = process()
        plane.wait_for("a", lambda detail: detail.carried == (400,))
        while node.declaration().serial != serial:
            pass
        assert node.has_nothing()
    assert plane.mesh().parked == 0
    assert lock_path(ground).exists()
