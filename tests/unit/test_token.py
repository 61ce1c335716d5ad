from __future__ import annotations

import base64
import hashlib
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.token import Token, parse_token

TOKEN = Token(
    node="node-a",
    broker="amqps://10.0.0.1:5671",
    fingerprints=("ab" * 32, "cd" * 32),
    signer=b"\x01" * 32,
    secret="s3cret",
)
TEXT = TOKEN.encode()
FIELDS = {
    "node": "node-a",
    "broker": "amqps://10.0.0.1:5671",
    "fingerprints": ["ab" * 32],
    "signer": base64.b64encode(b"\x01" * 32).decode(),
    "secret": "s3cret",
}

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
PINS = st.binary(min_size=32, max_size=32).map(bytes.hex)
TOKENS = st.builds(
    Token,
    node=LABELS,
    broker=st.integers(1, 65535).map("amqps://broker.example.org:{}".format),
    fingerprints=st.lists(PINS, min_size=1, max_size=3).map(tuple),
    signer=st.binary(min_size=32, max_size=32),
    secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)


def written(payload: object) -> str:
    """A token with a right check whatever its payload is."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    text = base64.urlsafe_b64encode(data).decode().rstrip("=")
    return f"mesh-join-1.{text}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@given(TOKENS)
def test_a_token_comes_back(token: Token) -> None:
    text = token.encode()
    assert text.isascii()
    assert " " not in text
    assert parse_token(text) == token


def test_a_token_logs_in_as_its_nodes_join_account() -> None:
    assert TOKEN.account == "join.node-a"


@pytest.mark.parametrize("length", range(len(TEXT)))
def test_a_cut_token_is_refused(length: int) -> None:
    with pytest.raises(Refused):
        parse_token(TEXT[:length])


@given(st.integers(0, len(TEXT) - 1), st.sampled_from(string.digits + string.ascii_letters + "-_.=+/?ä\0\udcff"))
def test_a_changed_character_is_seen(at: int, character: str) -> None:
    changed = TEXT[:at] + character + TEXT[at + 1 :]
    if changed != TEXT:
        with pytest.raises(Refused):
            parse_token(changed)


@given(st.integers(0, len(TEXT)), st.sampled_from(string.ascii_letters + "-_.="))
def test_an_added_character_is_seen(at: int, character: str) -> None:
    with pytest.raises(Refused):
        parse_token(TEXT[:at] + character + TEXT[at:])


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.sampled_from(" \t\r\n\u00a0"))))
def test_blanks_and_line_breaks_do_not_matter(blanks: list[tuple[int, str]]) -> None:
    text = TEXT
    for at, blank in blanks:
        text = text[:at] + blank + text[at:]
    assert parse_token(text) == TOKEN


@given(st.text() | st.text().map("mesh-join-1.{}".format) | st.binary().map(written))
def test_any_text_is_a_token_or_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse_token(text)


@pytest.mark.parametrize("text", ["", "   ", "hello", "mesh-join-2.AAAA.00000000", "mesh-join-1", "mesh-join-1..", "."])
def test_what_was_never_a_token_says_how_to_make_one(text: str) -> None:
    with pytest.raises(Refused, match=r"this is not a join token.*agent control token create NAME"):
        parse_token(text)


def test_a_token_that_lost_its_end_says_so() -> None:
    with pytest.raises(Refused, match="cut or changed on its way; copy the whole line again"):
        parse_token(TEXT[:-1])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"node": "Node"}, "the token's node name .* is no DNS label"),
        ({"node": None}, "join token.node: is missing"),
        ({"broker": "http://example.org"}, "join token.broker: .* is no broker's address"),
        ({"fingerprints": ["ab"]}, "join token.fingerprints: .* is no SHA-256 fingerprint"),
        ({"fingerprints": "ab"}, "join token.fingerprints: is a string; it must be a list"),
        ({"fingerprints": []}, "lacks a signer, a fingerprint or its secret"),
        ({"signer": "AAAA"}, "lacks a signer"),
        ({"signer": "not base64"}, "join token.signer: .* is not base64"),
        ({"secret": ""}, "lacks a signer, a fingerprint or its secret"),
    ],
)
def test_a_token_that_lacks_something_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(Refused, match=why):
        parse_token(written({**FIELDS, **change}))


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b"{}", b"[" * 5000, b'{"node":"a","node":"b"}'])
def test_a_payload_that_is_no_object_is_refused(payload: bytes) -> None:
    with pytest.raises(Refused):
        parse_token(written(payload))


def test_a_newer_tokens_fields_are_passed_over() -> None:
    assert parse_token(written({**FIELDS, "expires": 7})).node == "node-a"


def test_a_pin_may_be_written_as_openssl_does() -> None:
    pin = ":".join(["AB"] * 32)
    assert parse_token(written({**FIELDS, "fingerprints": [pin]})).fingerprints == ("ab" * 32,)


def test_the_secret_is_not_printed() -> None:
    assert "s3cret" not in repr(TOKEN)
