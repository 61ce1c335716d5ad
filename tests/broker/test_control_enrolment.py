"""Joining, with everything that can go wrong on the way: nobody is locked out, and nobody gets in who mustn't."""

from __future__ import annotations

import base64
import os
import sqlite3

import pika
import pytest

from agent.control.accounts import Bounds, BrokerAccounts
from agent.control.store import open_store
from agent.envelope import SigningKey
from agent.errors import Fatal, Refused, Unavailable
from agent.token import parse_token
from tests.broker.plane import REFUSAL, Newcomer, Peer, Plane, serving
from tests.broker.rabbit import CONTROL_PASSWORD, wait_until


@pytest.fixture
def plane(rabbit, ground):
    with serving(rabbit, ground) as plane:
        yield plane


class Accounts(BrokerAccounts):
    """The real ones, whose making of a node's account can be made to fail, before or after the work."""

    def __init__(self, rabbit):
        super().__init__(rabbit.management, Bounds())
        self.keeps_all = False
        self.before = []
        self.after = []
        self.meanwhile = lambda: None

    def delete_account(self, account):
        if self.keeps_all:
            raise Unavailable("it is away")
        super().delete_account(account)

    def make_node(self, name, password):
        if self.before:
            raise self.before.pop(0)
        self.meanwhile()
        super().make_node(name, password)
        if self.after:
            raise self.after.pop(0)


@pytest.fixture
def accounts(rabbit):
    return Accounts(rabbit)


@pytest.fixture
def shaky(rabbit, ground, accounts):
    with serving(rabbit, ground, accounts_for=lambda settings: accounts) as plane:
        yield plane


def has_account(plane, name):
    return name in plane.rabbit.account_names()


def live_tokens(plane):
    store = open_store(plane.state)
    try:
        return store.tokens.live()
    finally:
        store.close()


def test_a_machine_joins_with_a_token(plane):
    with plane.newcomer("a") as newcomer:
        reply = newcomer.enrol(newcomer.request(profile={"arch": "x86_64", "cpus": 4, "note": "c1\x9b"}))
    assert reply == {
        "accepted": True,
        "node": "a",
        "queue": "node.a",
        "password": reply["password"],
        "fingerprint": plane.rabbit.fingerprint,
        "signer": base64.b64encode(newcomer.token.signer).decode(),
        "broker": str(plane.rabbit.address),
    }
    assert len(reply["password"]) == 43
    detail = plane.detail("a")
    assert detail.public_key == newcomer.key.public
    assert detail.profile == {"arch": "x86_64", "cpus": 4, "note": "c1"}
    assert detail.row.presence.value == "never spoken"
    with newcomer.node(reply) as node:
        assert node.has_nothing()


@pytest.mark.parametrize("speak", [lambda node: node.alive(), lambda node: node.report(0), lambda node: node.report()])
def test_the_token_and_the_kept_password_end_when_the_node_first_speaks(plane, speak):
    with plane.join("a") as node:
        assert has_account(plane, "join.a")
        assert [token.node for token in live_tokens(plane) if token.spending] == ["a"]
        speak(node)
        wait_until(lambda: not has_account(plane, "join.a"), 20)
        assert [token.node for token in live_tokens(plane)] == ["founder"]
        assert node.password.encode() not in database(plane)


def database(plane):
    return b"".join(path.read_bytes() for path in plane.state.glob("control/store.db"))


def test_neither_secret_nor_token_is_in_the_store(plane):
    token = plane.token("a")
    store = b"".join(path.read_bytes() for path in plane.state.glob("control/store.db*"))
    assert token.secret.encode() not in store
    assert token.encode().encode() not in store


def test_the_token_says_which_node_it_is_for_not_the_body(plane):
    with plane.newcomer("a") as newcomer:
        assert newcomer.enrol(newcomer.request(node="b"))["node"] == "a"
    assert not has_account(plane, "node.b")


def test_whatever_is_wrong_with_a_token_is_said_in_one_sentence(plane):
    with plane.newcomer("a") as newcomer, plane.newcomer("b") as another:
        refused = {"accepted": False, "refusal": REFUSAL}
        body = newcomer.request()
        assert newcomer.enrol(newcomer.request(secret="a guess")) == refused
        assert newcomer.enrol(body, newcomer.signed(body, another.key)) == refused
        assert newcomer.enrol(body, {"signature": "no base64"}) == refused
        assert newcomer.enrol(body)["accepted"]
        spent = newcomer.request(public_key=base64.b64encode(another.key.public).decode())
        assert newcomer.enrol(spent) == refused
        assert newcomer.enrol(spent, newcomer.signed(spent, another.key)) == refused
        assert newcomer.enrol(body) == refused


def test_an_expired_token_looks_like_an_unknown_one(rabbit, ground, accounts):
    now = [1_000_000.0]
    with (
        serving(rabbit, ground, clock=lambda: now[0], accounts_for=lambda settings: accounts) as plane,
        plane.newcomer("a", clock=lambda: now[0]) as newcomer,
    ):
        accounts.keeps_all = True  # the account is still there when the secret no longer counts
        now[0] += 3600
        assert newcomer.enrol() == {"accepted": False, "refusal": REFUSAL}


def test_a_public_key_must_be_one_and_spends_no_token(plane):
    with plane.newcomer("a") as newcomer:
        reply = newcomer.enrol(newcomer.request(public_key=None))
        assert reply == {"accepted": False, "refusal": "the public key has 0 bytes, not 32"}
        assert newcomer.enrol()["accepted"]


def test_a_repeat_by_the_same_key_gets_the_same_answer(plane):
    with plane.newcomer("a") as newcomer:
        body = newcomer.request()
        first = newcomer.enrol(body)
        assert newcomer.enrol(body, newcomer.signed(body)) == first
        other = newcomer.request(profile={})
        assert newcomer.enrol(other, newcomer.signed(other)) == first
    with newcomer.node(first) as node:
        assert node.has_nothing()


def test_of_two_machines_with_one_token_exactly_one_gets_in(plane):
    first = plane.newcomer("a")
    second = Newcomer(plane.rabbit, first.token, SigningKey(b"2" * 32))
    with first, second:
        for one in (first, second):
            body = one.request()
            one.ask(body, one.signed(body))
        answers = [first.answer(), second.answer()]
    assert sorted(answer["accepted"] for answer in answers) == [False, True]
    winner = (first, second)[answers[1]["accepted"]]
    assert plane.detail("a").public_key == winner.key.public


def test_an_answer_goes_by_direct_reply_to_or_not_at_all(plane):
    with plane.newcomer("a") as newcomer:
        for at, reply_to in enumerate(["control", "node.a", "", None, "amq.rabbitmq.reply-to"[:-1]], 1):
            newcomer.send("enrol", newcomer.request(), reply_to=reply_to)
            plane.wait_for_parked(at)
        assert newcomer.enrol()["accepted"]
    with Peer(plane.rabbit, "control", CONTROL_PASSWORD) as peer:
        properties, body = peer.get("control.parked")
    assert "reply_to" in properties.headers["reason"]
    assert properties.headers["original.reply_to"] == "control"
    assert body == b""  # a secret was in it


@pytest.mark.parametrize(
    "forged", ["amq.rabbitmq.reply-to.", "amq.rabbitmq.reply-to.g1h2.abc", "amq.rabbitmq.reply-to.\n"]
)
def test_a_forged_address_stops_nobody_else(plane, forged):
    with plane.newcomer("a") as newcomer, plane.newcomer("b") as another:
        newcomer.send("enrol", newcomer.request(), reply_to=forged)
        assert another.enrol()["accepted"]
        plane.wait_for("a", lambda detail: detail.public_key == newcomer.key.public)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"node":"a"}', b'{"node":"a","secret":"s","public_key":"*"}'])
def test_a_request_that_is_none_is_parked_without_its_body(plane, body):
    with plane.newcomer("a") as newcomer:
        newcomer.ask(body)
        plane.wait_for_parked(1)
        assert newcomer.enrol()["accepted"]


# Interrupted at each step


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_management_that_fails_keeps_nobody_out_and_holds_nobody_up(shaky, accounts, when):
    with shaky.join("b") as other:
        getattr(accounts, when).extend([Unavailable("it is away"), Refused("it will not"), Unavailable("it is away")])
        with shaky.newcomer("a") as newcomer:
            newcomer.ask()
            other.report(0, carried=[80])
            shaky.wait_for("b", lambda detail: detail.carried == (80,))
            reply = newcomer.answer(60)
        with newcomer.node(reply) as node:
            assert node.has_nothing()
    assert shaky.mesh().parked == 0


def test_who_can_not_be_let_in_holds_no_declaration_up(shaky, accounts):
    with shaky.join("b") as other:
        other.report(0)
        shaky.wait_for("b", lambda detail: detail.row.applied == 0)
        accounts.before.extend([Refused("it will not")] * 100)
        with shaky.newcomer("a") as newcomer:
            newcomer.ask()
            shaky.wait_for("a", lambda detail: True)
            shaky.declare("b", "/etc/x")
            assert other.declaration().serial == 1
            accounts.before.clear()
            assert newcomer.answer(60)["accepted"]


def test_while_an_account_is_made_nobody_removes_its_node(shaky, accounts):
    found = []

    def look():
        other = sqlite3.connect(shaky.state / "control" / "store.db", timeout=0)
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            found.append(str(error))
        finally:
            other.close()

    accounts.meanwhile = look
    shaky.join("a")
    assert found == ["database is locked"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_control_plane_that_dies_over_a_request_answers_it_when_it_is_back(rabbit, ground, accounts, when):
    plane = Plane(rabbit, ground, accounts_for=lambda settings: accounts)
    plane.start()
    try:
        getattr(accounts, when).append(Fatal("the power is gone"))
        with plane.newcomer("a") as newcomer:
            newcomer.ask()  # without a signature
            wait_until(plane.died, 20)
            key = plane.detail("a").public_key
            plane.start()
            reply = newcomer.answer()
        assert key == newcomer.key.public
        with newcomer.node(reply) as node:
            assert node.has_nothing()
    finally:
        plane.stop()


def test_a_machine_that_never_heard_the_answer_asks_again(rabbit, ground, accounts):
    plane = Plane(rabbit, ground, accounts_for=lambda settings: accounts)
    plane.start()
    try:
        with plane.newcomer("a") as newcomer:
            newcomer.ask()
        plane.wait_for("a", lambda detail: True)
        with newcomer:
            body = newcomer.request()
            reply = newcomer.enrol(body, newcomer.signed(body))
        with newcomer.node(reply) as node:
            assert node.has_nothing()
    finally:
        plane.stop()


def test_a_mistake_of_ours_costs_one_message(rabbit, ground, caplog):
    mistakes = []

    def random(count):
        if mistakes:
            raise mistakes.pop()
        return os.urandom(count)

    with serving(rabbit, ground, random=random) as plane, plane.newcomer("a") as newcomer:
        mistakes.append(ZeroDivisionError("a mistake"))
        newcomer.ask()
        plane.wait_for_parked(1)
        assert newcomer.enrol()["accepted"]
    assert "ZeroDivisionError" in caplog.text


def test_the_old_login_s_word_does_not_end_a_token_that_is_not_answered_yet(shaky, accounts):
    with shaky.join("a") as old:
        old.report(0, carried=[80])
        shaky.wait_for("a", lambda detail: detail.carried)
        with shaky.newcomer("a", old.key) as newcomer:
            accounts.before.extend([Unavailable("it is away")] * 3)
            newcomer.ask()
            shaky.wait_for("a", lambda detail: detail.public_key == old.key.public)
            wait_until(lambda: len(accounts.before) < 3, 20)
            old.report(0, carried=[81])
            shaky.wait_for("a", lambda detail: detail.carried == (81,))
            reply = newcomer.answer(60)
        with newcomer.node(reply) as node:
            assert node.has_nothing()


# Tokens and accounts


def test_a_new_token_ends_the_one_before(plane):
    old, new = plane.newcomer("a"), plane.newcomer("a")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        old.__enter__()
    with new:
        assert new.enrol(new.request(secret=old.token.secret)) == {"accepted": False, "refusal": REFUSAL}
        assert new.enrol()["accepted"]


def test_a_token_that_could_not_be_made_leaves_the_one_before(plane, rabbit):
    class Away(BrokerAccounts):
        def make_join(self, name, password):
            raise Unavailable("it is away")

    old = plane.newcomer("a")
    with pytest.raises(Unavailable, match="away"):
        plane.token("a", accounts_for=lambda settings: Away(rabbit.management, Bounds()))
    with old:
        assert old.enrol()["accepted"]


def test_making_a_token_ends_what_was_spent_before_it(plane):
    first = plane.newcomer("a")
    with first:
        first.enrol()
        second = plane.newcomer("a")
        body = first.request()
        assert first.enrol(body, first.signed(body)) == {"accepted": False, "refusal": REFUSAL}
    with second:
        assert second.enrol()["accepted"]
    assert plane.detail("a").public_key == second.key.public


@pytest.mark.parametrize("name", ["", "A", "a.b", "-a", "a" * 64, "a\n", "*", "#"])
def test_a_token_for_what_is_no_name_is_refused(plane, name):
    before = plane.rabbit.account_names()
    with pytest.raises(Refused, match="DNS label"):
        plane.token(name)
    assert plane.rabbit.account_names() == before


@pytest.mark.parametrize("lifetime", [0, -1, 1e12, float("nan")])
def test_a_token_has_a_sensible_lifetime(plane, lifetime):
    with plane.control() as control, pytest.raises(Refused, match="lives from"):
        control.create_token("a", lifetime)


def test_an_expired_token_goes_with_its_account(plane):
    with plane.control() as control:
        control.create_token("a", 1.0)
    wait_until(lambda: not has_account(plane, "join.a"), 20)
    # The account goes first, so the record may be there for a moment.
    wait_until(lambda: [token.node for token in live_tokens(plane)] == ["founder"], 20)


def test_the_same_machine_joins_again_and_goes_on_as_it_was(plane):
    with plane.join("a") as old:
        old.report(0, carried=[80])
        plane.wait_for("a", lambda detail: detail.carried == (80,))
        serial = plane.declare("a", "/etc/x")
        old.declaration()
        old.report(serial, applied=["file:/etc/x"], carried=[80])
        plane.wait_for("a", lambda detail: detail.holdings != ())
        with plane.join("a", old.key) as new:
            wait_until(old.is_cut_off, 20)
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                Peer(plane.rabbit, old.account, old.password).__enter__()
            detail = plane.detail("a")
            assert (detail.holdings, detail.carried, detail.row.wanted) == (("file:/etc/x",), (80,), serial)
            assert detail.row.presence.value == "here"
            new.report(0)
            assert new.declaration().serial == serial


# The founder's own


def test_the_founder_finds_a_token_until_its_node_has_spoken(plane):
    assert plane.founder_token.stat().st_mode & 0o777 == 0o600
    token = parse_token(plane.founder_token.read_text())
    assert (token.node, str(token.broker)) == ("founder", str(plane.rabbit.address))
    plane.founder_token.unlink()
    wait_until(plane.founder_token.exists, 20)
    token = parse_token(plane.founder_token.read_text())
    with Newcomer(plane.rabbit, token, SigningKey(b"f" * 32)) as newcomer:
        reply = newcomer.enrol()
        assert plane.founder_token.exists()
    with newcomer.node(reply) as node:
        node.alive()
        wait_until(lambda: not plane.founder_token.exists(), 20)
    wait_until(lambda: not has_account(plane, "join.founder"), 20)


def test_the_founders_token_is_renewed_when_it_has_expired(rabbit, ground):
    now = [1_000_000.0]
    with serving(rabbit, ground, clock=lambda: now[0]) as plane:
        old = plane.founder_token.read_text()
        now[0] += 3599
        assert plane.founder_token.read_text() == old
        now[0] += 2
        wait_until(lambda: plane.founder_token.read_text() != old, 20)
        with Newcomer(rabbit, parse_token(plane.founder_token.read_text()), SigningKey(b"f" * 32)) as newcomer:
            assert newcomer.enrol()["accepted"]


def test_a_token_for_the_founders_node_leads_to_the_broker_beside_it(plane):
    (plane.state / "control" / "control.toml").write_text(
        (plane.state / "control" / "control.toml")
        .read_text()
        .replace(f'advertised = "{plane.rabbit.address}"', 'advertised = "amqps://mesh.example.org:443"')
    )
    assert str(plane.token("a").broker) == "amqps://mesh.example.org:443"
    assert str(plane.token("founder").broker) == str(plane.rabbit.address)
