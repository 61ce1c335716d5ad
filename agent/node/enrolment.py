"""Joining: asking with a token, and what of the answer is believed.

The keys exist, durably, before the question; the request is signed by the new key, so that asking again after a crash
gets the same answer and nobody else gets it. The answer's signer must be the one that the token names. A token that is
wrong, unknown, spent or expired is refused in one sentence, whether the broker or the control plane refuses it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

from agent.broker import Login, LoginRefused, Message, connect, parse_address
from agent.envelope import SigningKey
from agent.errors import Refused
from agent.fields import JsonValue, fingerprint, quoted
from agent.node.identity import Membership
from agent.token import Token
from agent.wire import (
    ENROL,
    SIGNATURE_HEADER,
    EnrolReply,
    EnrolRequest,
    broker_address,
    decode_enrol_reply,
    node_queue,
    statement_bytes,
)

_PATIENCE = 30.0
_LONGEST_REFUSAL = 500
# What a control plane says of every token that is of no use (`agent.control.enrolment`).
_OF_NO_USE = "this token cannot be used to join"


def enrol(
    token: Token, key: SigningKey, profile: Mapping[str, JsonValue], now: int, *, keep_address: bool
) -> Membership:
    """Ask to join with a key that is on the disk already. `now` in seconds since the epoch.

    `keep_address`: stay with the token's address, whatever the answer says (the founder reaches its own broker by
    loopback). Raises Refused when the mesh says no, `agent.broker`'s errors when it can't be asked.
    """
    body = EnrolRequest(token.node, token.secret, key.public, profile=profile).encode()
    signature = base64.b64encode(key.sign(statement_bytes(ENROL, 0, None, body))).decode("ascii")
    login = Login(parse_address(token.broker), token.account, token.secret, frozenset(token.fingerprints))
    try:
        session = connect(login)
    except LoginRefused as error:
        raise _refused(_OF_NO_USE, token) from error
    try:
        answer = session.request(
            Message(body, routing_key=ENROL, headers={SIGNATURE_HEADER: signature}, timestamp=now),
            timeout=_PATIENCE,
        )
    finally:
        session.close()
    return read_reply(decode_enrol_reply(answer.body), token, keep_address=keep_address)


def read_reply(reply: EnrolReply, token: Token, *, keep_address: bool) -> Membership:
    """What of an answer is believed; Refused when it says no, or isn't what this token's mesh would say."""
    if not reply.accepted:
        why = "".join(one if one.isprintable() else " " for one in reply.refusal[:_LONGEST_REFUSAL])
        raise _refused(why, token)
    if reply.signer != token.signer:
        raise Refused(
            "the answer to joining names another signer than the token does; somebody else answered, "
            "so nothing of it is believed"
        )
    if reply.node not in ("", token.node):
        raise Refused(
            f"the answer to joining is for node {quoted(reply.node)}, and the token is for {token.node}; "
            "make a new token on the founder"
        )
    if not reply.password:
        raise Refused("the answer to joining holds no password; the control plane is of another kind")
    pins = [*token.fingerprints]
    if reply.fingerprint:
        pins.append(fingerprint(reply.fingerprint, "enrol reply.fingerprint"))
    broker = reply.broker and broker_address(reply.broker, "enrol reply.broker")
    return Membership(
        broker=token.broker if keep_address or not broker else broker,
        fingerprints=tuple(dict.fromkeys(pins)),
        account=node_queue(token.node),
        password=reply.password,
        queue=reply.queue or node_queue(token.node),
        signers=(token.signer,),
        joined_by=joined_by(token),
    )


def _refused(why: str, token: Token) -> Refused:
    advice = f"; make another with `agent control token create {token.node}`" if why == _OF_NO_USE else ""
    return Refused(f"the mesh refused to let this machine join: {why or 'it gave no reason'}{advice}")


def joined_by(token: Token) -> str:
    """A name for a token that does not give it away."""
    return hashlib.sha256(token.secret.encode("utf-8")).hexdigest()[:16]
