"""What was put aside: looked at, dropped, tried again."""

from __future__ import annotations

from contextlib import closing

import pytest

from agent.broker import connect
from agent.control import parking
from agent.control.accounts import Bounds, BrokerAccounts
from agent.errors import Refused, Unavailable
from tests.broker.plane import serving
from tests.broker.rabbit import CONTROL_PASSWORD, wait_until
from tests.broker.test_accounts import Hostile, Undecodable


@pytest.fixture
def plane(rabbit, ground):
    with serving(rabbit, ground) as plane:
        yield plane


@pytest.fixture
def node(plane):
    with plane.join("a") as node:
        yield node


def parked(plane):
    with plane.control() as control:
        return control.parked()


def test_it_is_shown_whole_and_stays(plane, node):
    node.send("report", b"no \x1b JSON", user_id=node.account, headers={"serial": 7, "odd": "x"}, message_id="m")
    node.send("alive", {"node": "b"}, user_id=node.account)
    plane.wait_for_parked(2)
    first, second = parked(plane)
    assert "not readable JSON" in first.reason
    assert (first.sender, first.routing_key, first.body, first.cut) == ("node.a", "report", b"no \x1b JSON", False)
    assert first.original.items() >= {"message_id": "m", "header.serial": "7", "header.odd": "x"}.items()
    assert "speaks for" in second.reason
    assert parking.in_text(first.body) == "no  JSON"
    assert parked(plane) == (first, second)
    with plane.control() as control:
        assert control.parked_message(first.id) == first
        with pytest.raises(Refused, match='called "nothing"'):
            control.parked_message("nothing")


def test_what_is_dropped_is_gone_and_the_rest_is_not(plane, node):
    for at in range(3):
        node.send("alive", {"node": f"b{at}"}, user_id=node.account)
    plane.wait_for_parked(3)
    one, two, three = parked(plane)
    with plane.control() as control:
        with pytest.raises(Refused, match="No parked message"):
            control.drop_parked([one.id, "nothing"])
        assert parked(plane) == (one, two, three)
        assert control.drop_parked([two.id]) == 1
        assert parked(plane) == (one, three)
        assert control.drop_parked(None) == 2
        assert control.parked() == ()


def test_what_is_tried_again_is_heard_as_it_was_said(rabbit, ground):
    with serving(rabbit, ground, require_signatures=True) as plane, plane.join("a") as node:
        node.report(0, carried=[80])
        node.state("report", 5, 0, carried=[81], by=None)
        plane.wait_for("a", lambda detail: detail.carried == (81,))
        plane.wait_for_parked(1)
        (one,) = parked(plane)
        assert "require signatures" in one.reason
        with plane.control() as control:
            control.retry_parked([one.id])
        plane.wait_for_parked(1)
        wait_until(lambda: [again.id for again in parked(plane)] not in ([], [one.id]), 20)
        assert parked(plane)[0].original == one.original
    # The same, by one that doesn't require them.
    with serving(rabbit, ground) as plane, plane.control() as control:
        control.retry_parked(None)
        detail = plane.wait_for("a", lambda detail: detail.carried == (80,))
        assert detail.row.version == "7.7"
        assert control.parked() == ()


def test_a_signature_still_counts_when_it_is_tried_again(plane, node):
    store = plane.control()._store
    key = node.key.public
    store._database.execute("UPDATE node SET public_key = ?", (b"x" * 32,))
    node.state("report", 5, 0, carried=[80])
    plane.wait_for_parked(1)
    store._database.execute("UPDATE node SET public_key = ?", (key,))
    with plane.control() as control:
        control.retry_parked(None)
        plane.wait_for("a", lambda detail: detail.carried == (80,))
    node.state("report", 5, 0, carried=[81])  # a repeat of that counter
    node.state("report", 6, 0, carried=[82])
    plane.wait_for("a", lambda detail: detail.carried == (82,))


def test_what_is_not_whole_is_not_tried_again(plane, node):
    with plane.newcomer("b") as newcomer:
        newcomer.send("enrol", newcomer.request(), reply_to="control")
        node.send("report", b"{" * (parking.LARGEST_PARKED + 1), user_id=node.account)
        node.send("alive", {"node": "b"}, user_id=node.account)
        plane.wait_for_parked(3)
    request, long, short = parked(plane)
    with plane.control() as control:
        with pytest.raises(Refused, match="request to join"):
            control.retry_parked([request.id, short.id])
        with pytest.raises(Refused, match="262144 bytes"):
            control.retry_parked([long.id])
        assert control.parked() == (request, long, short)
        assert control.retry_parked(None) == 1


def test_a_node_cannot_pass_for_what_is_tried_again(plane, node):
    disguise = {"original.routing_key": "alive", "original.user_id": "node.b"}
    node.send("report", {"node": "b"}, user_id=node.account, headers=disguise)
    plane.wait_for_parked(1)
    (one,) = parked(plane)
    assert (one.sender, one.routing_key) == ("node.a", "report")


def test_what_the_broker_gave_up_is_not_believed_to_be_ours(rabbit, ground):
    disguise = {"reason": "none", "original.routing_key": "report", "original.user_id": "node.b"}
    with serving(
        rabbit, ground, accounts_for=lambda settings: BrokerAccounts(rabbit.management, Bounds(deliveries=1))
    ) as plane:
        b = plane.join("b")
        with plane.join("a") as a:
            a.report(0)
            plane.wait_for("a", lambda detail: detail.row.last_seen)
            plane.stop()
            a.send("report", {"node": "b", "carried": [666]}, user_id=a.account, headers=disguise, timestamp=2**63)
        with b:
            b.report(0, carried=[80])
            for _ in range(2):  # something dies over it
                got = []
                with closing(connect(rabbit.login)) as session:
                    session.consume("control", got.append, exclusive=False, prefetch=1)
                    wait_until(lambda session=session, got=got: session.pump(0.1) or got, 20)
            wait_until(lambda: rabbit.queue_length("control.parked") == 1, 20)
            plane.start()
            (one,) = parked(plane)
            assert one.sender == "node.a"
            assert "died over it too often" in one.reason
            with plane.control() as control:
                with pytest.raises(Refused, match="only drop it"):
                    control.retry_parked([one.id])
                assert control.retry_parked(None) == 0
            plane.wait_for("b", lambda detail: detail.carried == (80,))


def poison(rabbit, account, password, exchange, key):
    """Publish what no client can decode."""
    hostile = Hostile(rabbit, account, password)
    hostile.tries(lambda channel: channel.basic_publish(exchange, key, b"poison", Undecodable()))
    hostile.connection.close()


def test_what_no_client_can_decode_costs_no_other_statement(rabbit, ground):
    with serving(
        rabbit, ground, accounts_for=lambda settings: BrokerAccounts(rabbit.management, Bounds(deliveries=4))
    ) as plane:
        with plane.join("a") as a, plane.join("b") as b:
            a.report(0)
            b.report(0)
            plane.wait_for("b", lambda detail: detail.row.last_seen)
            plane.stop()
            with plane.control() as control:
                control._store.settings.set_served(True)
            a.report(0, carried=[80])
            poison(rabbit, a.account, a.password, "mesh", "report")
            b.report(0, carried=[81])
            plane.begin()
            plane.wait_for("b", lambda detail: detail.carried == (81,))
            plane.wait_for("a", lambda detail: detail.carried == (80,))
        plane.wait_for_parked(1)


def test_all_can_be_dropped_even_what_no_client_can_decode(rabbit, plane):
    poison(rabbit, "control", CONTROL_PASSWORD, "", "control.parked")
    plane.wait_for_parked(1)
    with plane.control() as control:
        with pytest.raises(Unavailable, match="drops them all unread"):
            control.parked()
        assert control.drop_parked(None) == 1
        assert control.parked() == ()
