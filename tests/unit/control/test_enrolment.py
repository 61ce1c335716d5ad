"""Who may become a node: every question that a request raises, asked of the pure decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent import wire
from agent.control.enrolment import (
    REFUSAL,
    Deny,
    IssuedToken,
    Proof,
    Repeat,
    Request,
    Spend,
    Spending,
    check_reply_to,
    decide,
    secret_digest,
)
from agent.errors import Refused

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
NOW = 1_000_000.0
OPEN = IssuedToken(
    id=7,
    node="node-a",
    digest=secret_digest("s3cret"),
    broker="amqps://10.0.0.1:5671",
    signer=b"s" * 32,
    made=NOW - 60,
    expires=NOW + 60,
)
SPENDING = Spending(public_key=KEY, password="p", request=b"digest of the request")
SPENT = replace(OPEN, spending=SPENDING)
OTHERS = tuple(replace(OPEN, id=at, node=f"n{at}", digest=secret_digest(f"{at}")) for at in range(3))


def request(secret="s3cret", key=KEY, proof=Proof.GOOD, digest=b"another digest", redelivered=False):
    return Request(wire.EnrolRequest("what-it-believes", secret, key), proof, digest, redelivered)


@pytest.mark.parametrize("proof", [Proof.GOOD, Proof.ABSENT])
def test_an_unspent_token_is_spent_whatever_name_the_body_has(proof):
    assert decide(request(proof=proof), (*OTHERS, OPEN), NOW) == Spend(OPEN)


@pytest.mark.parametrize(
    ("asked", "tokens", "now"),
    [
        (request(secret="guess"), (*OTHERS, OPEN), NOW),
        (request(), (), NOW),
        (request(), (OPEN,), OPEN.expires),
        (request(proof=Proof.WRONG), (OPEN,), NOW),
        (request(key=OTHER_KEY), (SPENT,), NOW),
        (request(proof=Proof.ABSENT), (SPENT,), NOW),
        (request(proof=Proof.WRONG), (SPENT,), NOW),
        (request(proof=Proof.ABSENT, redelivered=True), (SPENT,), NOW),
        (request(proof=Proof.ABSENT, digest=SPENDING.request), (SPENT,), NOW),
        (request(key=OTHER_KEY, proof=Proof.ABSENT, digest=SPENDING.request, redelivered=True), (SPENT,), NOW),
    ],
    ids=[
        "unknown secret",
        "no token at all",
        "expired",
        "signed by another key than it shows",
        "spent by another key",
        "spent, no proof of the key",
        "spent, a wrong proof of the key",
        "redelivered, but another request",
        "the same request, but sent again",
        "the same digest with another key",
    ],
)
def test_whatever_is_wrong_with_a_token_is_said_in_one_sentence(asked, tokens, now):
    assert decide(asked, tokens, now) == Deny(REFUSAL)


def test_a_repeat_signed_by_the_same_key_gets_the_same_answer():
    assert decide(request(), (*OTHERS, SPENT), NOW) == Repeat(SPENT, SPENDING)


def test_a_repeat_is_not_asked_for_the_expiry_again():
    assert decide(request(), (SPENT,), SPENT.expires + 3600) == Repeat(SPENT, SPENDING)


def test_the_message_we_died_over_gets_its_answer_without_a_signature():
    asked = request(proof=Proof.ABSENT, digest=SPENDING.request, redelivered=True)
    assert decide(asked, (SPENT,), NOW) == Repeat(SPENT, SPENDING)


@pytest.mark.parametrize("key", [b"", b"k" * 31, b"k" * 33])
def test_a_public_key_of_another_length_spends_nothing(key):
    decision = decide(request(key=key, proof=Proof.ABSENT), (OPEN,), NOW)
    assert decision == Deny(f"the public key has {len(key)} bytes, not 32")


def test_a_wrong_key_length_tells_nothing_of_the_token():
    wrong = request(key=b"", proof=Proof.ABSENT)
    assert decide(wrong, (OPEN,), NOW) == decide(wrong, (), NOW)


def test_a_secret_that_is_no_text_is_only_unknown():
    assert decide(request(secret="\ud800"), (OPEN,), NOW) == Deny(REFUSAL)


@pytest.mark.parametrize("reply_to", [None, "", "node.a", "control", "amq.rabbitmq.reply-to", "xamq.rabbitmq.reply-to.1"])
def test_only_direct_reply_to_is_answered(reply_to):
    with pytest.raises(Refused, match="reply_to"):
        check_reply_to(reply_to)


def test_direct_reply_to_is_answered_as_it_is():
    assert check_reply_to("amq.rabbitmq.reply-to.g1h2.abc") == "amq.rabbitmq.reply-to.g1h2.abc"
