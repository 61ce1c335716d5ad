"""Who leaves the mesh: tokens that are revoked, nodes that are removed, machines that others take the place of."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pika
import pytest

from agent.control.accounts import Bounds, BrokerAccounts
from agent.errors import Fatal, Refused, Unavailable
from tests.broker.plane import REFUSAL, Peer, Plane, serving
from tests.broker.rabbit import wait_until


@pytest.fixture
def plane(rabbit, ground):
    with serving(rabbit, ground) as plane:
        yield plane


@pytest.fixture
def old(plane):
    """A node that was declared two files, holds both, and carries a port."""
    with plane.join("a") as node:
        serial = plane.declare("a", "/etc/x", "/etc/y")
        node.declaration()
        node.report(serial, applied=["file:/etc/x", "file:/etc/y"], carried=[80])
        plane.wait_for("a", lambda detail: detail.holdings)
        yield node


def accounts_of(plane, name):
    return {f"join.{name}", f"node.{name}"} & plane.rabbit.account_names()


def rows_about(plane, name):
    with closing(sqlite3.connect(f"file:{plane.state / 'control' / 'store.db'}?mode=ro", uri=True)) as store:
        tables = [table for (table,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [table for table in tables for row in store.execute(f"SELECT * FROM {table}") if name in row]


# Replacing


def test_a_name_that_has_joined_needs_to_be_said_so(plane, old):
    with plane.control() as control:
        with pytest.raises(Refused, match="--replace"):
            control.create_token("a")
        with pytest.raises(Refused, match="--replace only"):
            control.create_token("a", at_once=True)
    wait_until(lambda: accounts_of(plane, "a") == {"node.a"}, 20)
    old.report(1, carried=[81])
    plane.wait_for("a", lambda detail: detail.carried == (81,))


def test_another_machine_takes_the_place_when_it_joins(plane, old):
    with plane.newcomer("a") as newcomer:
        old.report(1, applied=["file:/etc/x", "file:/etc/y"], carried=[81])
        plane.wait_for("a", lambda detail: detail.carried == (81,))
        plane.declare("a", "/etc/y", "/etc/z")  # waits for the old one, which is not there to read it
        with newcomer.node(newcomer.enrol()) as new:
            wait_until(old.is_cut_off, 20)
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                Peer(plane.rabbit, old.account, old.password).__enter__()
            detail = plane.detail("a")
            assert detail.public_key == newcomer.key.public
            assert (detail.row.presence.value, detail.row.applied, detail.carried) == ("never spoken", None, ())
            assert detail.holdings == ("file:/etc/x", "file:/etc/y")
            assert new.has_nothing()
            new.report(0, carried=[22])
            declaration = new.declaration()
            assert declaration.serial == 2
            assert declaration.says["recovery"] == ["file:/etc/x", "file:/etc/y"]
            assert new.has_nothing()
            new.state("report", 1, 2, by=old.key)
            plane.wait_for_parked(1)
            new.state("report", 1, 2, carried=[23])
            plane.wait_for("a", lambda detail: detail.row.applied == 2)
    assert plane.detail("a").carried == (23,)


def test_a_machine_can_be_shut_out_before_the_next_one_is_there(plane, old):
    plane.declare("a", "/etc/z")
    with plane.control() as control:
        token = control.create_token("a", replace=True, at_once=True)
    wait_until(old.is_cut_off, 20)
    assert accounts_of(plane, "a") == {"join.a"}
    assert plane.rabbit.queue_length("node.a") == 0
    assert token.node == "a"
    assert plane.detail("a").holdings == ("file:/etc/x", "file:/etc/y")


class Dying(BrokerAccounts):
    """The real ones, over which the control plane dies once."""

    deaths: tuple[str, ...] = ()

    def _die(self, method):
        if method in Dying.deaths:
            Dying.deaths = ()
            raise Fatal("the power is gone")

    def delete_account(self, account):
        super().delete_account(account)
        if account == "node.a":
            self._die("delete_account")

    def purge_queue(self, queue):
        super().purge_queue(queue)
        self._die("purge_queue")


@pytest.mark.parametrize("method", ["delete_account", "purge_queue"])
def test_a_replacement_that_is_interrupted_is_finished(rabbit, ground, method):
    plane = Plane(rabbit, ground, accounts_for=lambda settings: Dying(rabbit.management, Bounds()))
    plane.start()
    try:
        with plane.join("a") as old:
            old.report(0)
            plane.wait_for("a", lambda detail: detail.row.last_seen)
            with plane.newcomer("a") as newcomer:
                Dying.deaths = (method,)
                newcomer.ask()
                wait_until(plane.died, 20)
                plane.start()
                reply = newcomer.answer()
            wait_until(old.is_cut_off, 20)
            with newcomer.node(reply) as new:
                new.report(0, carried=[80])
                plane.wait_for("a", lambda detail: detail.carried == (80,))
    finally:
        plane.stop()


# Tokens


def test_tokens_are_listed_without_their_secrets(plane):
    one = plane.newcomer("b")
    with plane.newcomer("a") as newcomer:
        newcomer.enrol()
        with plane.control() as control:
            rows = control.tokens()
    assert [(row.node, row.standing.value) for row in rows] == [
        ("a", "spent, its node has yet to speak"),
        ("b", "good"),
        ("founder", "good"),
    ]
    assert rows[1].expires == pytest.approx(rows[1].made + 3600)
    assert one.token.secret not in repr(rows)


def test_a_revoked_token_lets_nobody_in(plane):
    with plane.newcomer("a") as waiting, plane.control() as control:
        control.revoke_token("a")
        wait_until(waiting.is_cut_off, 20)
        with pytest.raises(Refused, match='no token for "a"'):
            control.revoke_token("a")
        assert [row.node for row in control.tokens()] == ["founder"]
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        waiting.__enter__()
    assert accounts_of(plane, "a") == set()


def test_a_token_that_could_not_be_revoked_counts(plane, rabbit):
    class Away(BrokerAccounts):
        def delete_account(self, account):
            raise Unavailable("it is away")

    newcomer = plane.newcomer("a")
    with (
        plane.control(accounts_for=lambda settings: Away(rabbit.management, Bounds())) as control,
        pytest.raises(Unavailable),
    ):
        control.revoke_token("a")
    with newcomer:
        assert newcomer.enrol()["accepted"]


def test_a_request_whose_token_was_revoked_meanwhile_is_refused(rabbit, ground):
    class Slow(BrokerAccounts):
        away = True

        def make_node(self, name, password):
            if Slow.away:
                raise Unavailable("it is away")
            super().make_node(name, password)

    with serving(rabbit, ground, accounts_for=lambda settings: Slow(rabbit.management, Bounds())) as plane:
        with plane.newcomer("a") as newcomer:
            newcomer.ask()
            plane.wait_for("a", lambda detail: True)
            store = plane.control()._store
            store.tokens.forget_all("a")
            Slow.away = False
            assert newcomer.answer() == {"accepted": False, "refusal": REFUSAL}
        assert "node.a" not in rabbit.account_names()


# Removing


@pytest.mark.parametrize("connected", [True, False])
def test_a_removed_node_leaves_nothing(plane, old, connected):
    if not connected:
        old.connection.close()
    plane.declare("a", "/etc/z")
    plane.token("a")
    with plane.control() as control:
        control.remove_node("a")
        with pytest.raises(Refused, match='no node "a"'):
            control.remove_node("a")
    if connected:
        wait_until(old.is_cut_off, 20)
    assert accounts_of(plane, "a") == set()
    assert not plane.rabbit.accounts().has_queue("node.a")
    assert rows_about(plane, "a") == []
    with plane.control() as control:
        control.create_token("a")  # as for any new name
    with plane.join("a") as again:
        again.report(1, applied=["file:/etc/x"])
        plane.wait_for("a", lambda detail: detail.row.applied == 1)
        assert again.has_nothing()
        assert plane.declare("a", "/etc/n") == 2


def test_the_founders_own_node_is_not_removed(plane):
    with plane.join("founder"), plane.control() as control, pytest.raises(Refused, match="agent reset"):
        control.remove_node("founder")
    assert accounts_of(plane, "founder") == {"join.founder", "node.founder"}


def test_a_removal_that_was_interrupted_is_finished_by_another(plane, old, rabbit):
    class Away(BrokerAccounts):
        def delete_queue(self, queue):
            raise Unavailable("it is away")

    with (
        plane.control(accounts_for=lambda settings: Away(rabbit.management, Bounds())) as control,
        pytest.raises(Unavailable),
    ):
        control.remove_node("a")
    assert plane.knows("a")
    with plane.control() as control:
        control.remove_node("a")
    assert rows_about(plane, "a") == []
    assert not rabbit.accounts().has_queue("node.a")
