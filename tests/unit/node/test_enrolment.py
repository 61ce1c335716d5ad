from __future__ import annotations

from dataclasses import replace

import pytest

from agent.errors import Refused
from agent.node.enrolment import joined_by, read_reply
from agent.node.identity import Membership
from agent.token import Token
from agent.wire import EnrolReply

SIGNER = b"s" * 32
PIN, OTHER_PIN = "ab" * 32, "cd" * 32
TOKEN = Token("a", "amqps://10.0.0.1:5671", (PIN, OTHER_PIN), SIGNER, "geheim")
REPLY = EnrolReply(
    accepted=True,
    node="a",
    queue="node.a",
    password="neu",
    fingerprint=PIN,
    signer=SIGNER,
    broker="amqps://mesh.example:5671",
)
MEMBERSHIP = Membership(
    broker="amqps://mesh.example:5671",
    fingerprints=(PIN, OTHER_PIN),
    account="node.a",
    password="neu",
    queue="node.a",
    signers=(SIGNER,),
    joined_by=joined_by(TOKEN),
)


def test_an_answer_becomes_a_membership() -> None:
    assert read_reply(REPLY, TOKEN, keep_address=False) == MEMBERSHIP


def test_a_founder_stays_with_the_address_of_its_token() -> None:
    assert read_reply(REPLY, TOKEN, keep_address=True) == replace(MEMBERSHIP, broker=TOKEN.broker)


def test_what_an_answer_leaves_out_the_token_knows() -> None:
    bare = EnrolReply(accepted=True, password="neu", signer=SIGNER)
    assert read_reply(bare, TOKEN, keep_address=False) == replace(MEMBERSHIP, broker=TOKEN.broker)


def test_another_certificate_is_believed_beside_the_tokens() -> None:
    new = ":".join(["EF"] * 32)
    membership = read_reply(replace(REPLY, fingerprint=new), TOKEN, keep_address=False)
    assert membership.fingerprints == (PIN, OTHER_PIN, "ef" * 32)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (EnrolReply(False, refusal="this token cannot be used"), "refused .* join: this token cannot be used$"),
        (EnrolReply(False), "refused to let this machine join: it gave no reason"),
        (EnrolReply(False, refusal="\x1b[2Jgone\n" + "x" * 1000), r"join:  \[2Jgone x{400,500}$"),
        (replace(REPLY, accepted=False), "refused to let this machine join"),
        (replace(REPLY, signer=b"t" * 32), "names another signer than the token does.*nothing of it is believed"),
        (replace(REPLY, signer=b""), "names another signer"),
        (replace(REPLY, node="b"), 'is for node "b", and the token is for a'),
        (replace(REPLY, password=""), "holds no password"),
        (replace(REPLY, fingerprint="ab12"), "fingerprint: .* is no SHA-256"),
        (replace(REPLY, broker="mesh.example:5671"), "is no broker's address"),
        (replace(REPLY, broker="amqp://mesh.example:5672"), "is no broker's address"),
    ],
)
def test_what_is_not_believed_is_refused(reply: EnrolReply, why: str) -> None:
    for keep_address in (True, False):
        with pytest.raises(Refused, match=why):
            read_reply(reply, TOKEN, keep_address=keep_address)


def test_a_token_is_named_without_being_given_away() -> None:
    name = joined_by(TOKEN)
    assert name == joined_by(replace(TOKEN, broker="amqps://127.0.0.1:5671"))
    assert name != joined_by(replace(TOKEN, secret="anderes"))
    assert TOKEN.secret not in name
    assert "neu" not in repr(MEMBERSHIP)
