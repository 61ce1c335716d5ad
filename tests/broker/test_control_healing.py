"""The control queue's own way to die: a broker that lost its power right after the queue was made."""

from __future__ import annotations

import pytest

from agent.broker import Lost, connect
from agent.control.store import open_store
from tests.broker.plane import Plane, serving
from tests.broker.rabbit import wait_until


class Unreadable:
    """A session on which reading fails, as on a queue that has no leader; all else is the real one's."""

    def __init__(self, login):
        self._session = connect(login)

    def __getattr__(self, name):
        return getattr(self._session, name)

    def consume(self, *_, **__):
        raise Lost("nobody answers")


def test_a_founder_that_loses_its_power_at_its_first_start_comes_back(rabbit, ground):
    plane = Plane(rabbit, ground)
    plane.start()
    try:
        rabbit.kill()  # with the queue some tenths of a second old
        rabbit.start()
        plane.ready_file.unlink()
        plane.stop()
        plane.begin()
        # Reading a queue without a leader is given up after half a minute.
        wait_until(plane.ready_file.exists, 120)
        with plane.join("a") as node:
            node.report(0, carried=[80])
            plane.wait_for("a", lambda detail: detail.carried == (80,))
    finally:
        plane.stop()


@pytest.mark.parametrize("served", [False, True])
def test_only_a_queue_that_was_never_served_is_made_anew(rabbit, ground, served, caplog):
    with serving(rabbit, ground) as plane:
        node = plane.join("a")
    store = open_store(ground)
    assert not store.settings.served
    store.settings.set_served(served)
    store.close()
    failing = []

    def open_session(login):
        if failing:
            return Unreadable(login)
        return connect(login)

    with node:
        node.report(0, carried=[80])
        failing.append(True)
        plane = Plane(rabbit, ground, open_session=open_session)
        plane.begin()
        try:
            wait_until(lambda: "nobody answers" in caplog.text, 30)
            failing.clear()
            wait_until(plane.ready_file.exists, 30)
            node.report(0, carried=[81], timestamp=1)
            plane.wait_for("a", lambda detail: detail.carried == (81,))
        finally:
            plane.stop()
    assert ("is made anew" in caplog.text) is not served
    # The earlier report is the later one's elder by an hour and more: it alone would have moved this.
    assert (plane.detail("a").row.last_seen == 1) is not served


def test_a_queue_that_was_read_for_a_while_counts_as_served(rabbit, ground):
    with serving(rabbit, ground) as plane:
        wait_until(lambda: served(plane), 60)
        rabbit.accounts().delete_queue("control")
        wait_until(lambda: not served(plane), 60)


def served(plane):
    store = open_store(plane.state)
    try:
        return store.settings.served
    finally:
        store.close()
