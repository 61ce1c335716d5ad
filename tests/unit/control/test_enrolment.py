"""Who may become a node: every question that a request raises, asked of the pure decision."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace

import pytest

from agent import wire
from agent.broker import DIRECT_REPLY, Delivery, Message
from agent.control.enrolment import (
    REFUSAL,
    Deny,
    IssuedToken,
    Proof,
    Repeat,
    Request,
    Spend,
    Spending,
    decide,
    read_request,
    secret_digest,
)
from agent.envelope import SigningKey
from agent.errors import Refused

SIGNER = SigningKey(b"k" * 32)
BODY = json.dumps({"node": "a", "secret": "s3cret", "public_key": base64.b64encode(SIGNER.public).decode()}).encode()
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


@pytest.mark.parametrize(
    "reply_to", [None, "", "node.a", "control", "amq.rabbitmq.reply-to", "xamq.rabbitmq.reply-to.1"]
)
def test_only_direct_reply_to_is_answered(reply_to):
    with pytest.raises(Refused, match="reply_to"):
        read_request(Delivery(Message(BODY, routing_key="enrol", reply_to=reply_to), 1, False))


@pytest.mark.parametrize(
    ("header", "proof"),
    [
        (None, Proof.ABSENT),
        (base64.b64encode(SIGNER.sign(b"enrol\n0\n\n" + BODY)).decode(), Proof.GOOD),
        (base64.b64encode(SIGNER.sign(BODY)).decode(), Proof.WRONG),
        (base64.b64encode(SigningKey(b"x" * 32).sign(b"enrol\n0\n\n" + BODY)).decode(), Proof.WRONG),
        ("", Proof.WRONG),
        ("not base64", Proof.WRONG),
        ("Grüße", Proof.WRONG),
        (7, Proof.WRONG),
    ],
)
def test_a_signature_proves_the_key_in_the_body(header, proof):
    headers = {} if header is None else {"signature": header}
    message = Message(BODY, routing_key="enrol", reply_to=DIRECT_REPLY + "g1h2.abc", headers=headers)
    request_read = read_request(Delivery(message, 1, True))
    assert request_read == Request(
        wire.EnrolRequest("a", "s3cret", SIGNER.public), proof, hashlib.sha256(BODY).digest(), redelivered=True
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"node":"a","secret":7,"public_key":""}', b'{"node":"a","secret":"s","public_key":"*"}'],
)
def test_a_request_that_is_none_is_not_understood(body):
    with pytest.raises(Refused):
        read_request(Delivery(Message(body, routing_key="enrol", reply_to=DIRECT_REPLY + "x"), 1, False))
