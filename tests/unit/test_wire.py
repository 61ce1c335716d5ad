from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import wire
from agent.errors import Refused
from agent.fields import JsonValue

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
DECODERS = [
    wire.decode_enrol_request,
    wire.decode_enrol_reply,
    wire.decode_alive,
    wire.decode_report,
    wire.decode_signed,
]
# Every field of every message, so that random objects have a chance to be nearly right.
NAMES = st.sampled_from(
    [
        "node",
        "secret",
        "public_key",
        "overlay_key",
        "profile",
        "accepted",
        "queue",
        "password",
        "fingerprint",
        "signer",
        "broker",
        "refusal",
        "applied",
        "failed",
        "refused",
        "carried",
        "declaration",
        "signature",
    ]
)


@given(TEXT, TEXT, st.binary(), st.binary(), st.dictionaries(TEXT, JSON, max_size=3))
def test_an_enrol_request_comes_back(
    node: str, secret: str, public: bytes, overlay: bytes, profile: Mapping[str, JsonValue]
) -> None:
    request = wire.EnrolRequest(node, secret, public, overlay, profile)
    assert wire.decode_enrol_request(request.encode()) == request


@given(st.booleans(), TEXT, TEXT, TEXT, TEXT, st.binary(), TEXT, TEXT)
def test_an_enrol_reply_comes_back(
    accepted: bool,
    node: str,
    queue: str,
    password: str,
    fingerprint: str,
    signer: bytes,
    broker: str,
    refusal: str,
) -> None:
    reply = wire.EnrolReply(accepted, node, queue, password, fingerprint, signer, broker, refusal)
    assert wire.decode_enrol_reply(reply.encode()) == reply


@given(TEXT, st.lists(TEXT), st.dictionaries(TEXT, TEXT), TEXT, st.sets(st.integers(1, 65535)))
def test_a_report_comes_back(
    node: str, applied: list[str], failed: dict[str, str], refused: str, carried: set[int]
) -> None:
    report = wire.Report(node, tuple(applied), failed, refused, tuple(sorted(carried)))
    assert wire.decode_report(report.encode()) == report


@given(TEXT)
def test_an_alive_comes_back(node: str) -> None:
    assert wire.decode_alive(wire.Alive(node).encode()) == wire.Alive(node)


@given(st.binary(), st.binary())
def test_an_envelope_comes_back_with_its_exact_bytes(declaration: bytes, signature: bytes) -> None:
    signed = wire.Signed(declaration, signature)
    assert wire.decode_signed(signed.encode()) == signed


@pytest.mark.parametrize("decode", DECODERS)
@given(body=st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_message_or_refused(decode: Callable[[bytes], object], body: bytes) -> None:
    with contextlib.suppress(Refused):
        decode(body)


@pytest.mark.parametrize("decode", DECODERS)
@given(body=st.dictionaries(NAMES, JSON | st.just("") | st.just("AAAA")))
def test_any_values_of_the_right_names_are_a_message_or_refused(
    decode: Callable[[bytes], object], body: dict[str, JsonValue]
) -> None:
    with contextlib.suppress(Refused):
        decode(json.dumps(body).encode())


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"node"',
        b'{"node":',
        b'{"node":"a","node":"b"}',
        b'{"declaration":"","declaration":""}',
        b'{"accepted":true,"accepted":false}',
        b'\xef\xbb\xbf{"node":"a"}',
        '{"node":"ä"}'.encode("latin-1"),
        b'{"node":"\\ud800"}',
        b'{"node":NaN}',
        b'{"node":' + b"[" * 100_000,
        b'{"node":' + b"9" * 100_000 + b"}",
    ],
)
def test_what_is_no_message_is_refused(decode: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(Refused):
        decode(body)


@pytest.mark.parametrize(
    ("decode", "body", "why"),
    [
        (wire.decode_alive, {"node": 7}, "alive.node: is a number; it must be a string"),
        (wire.decode_alive, {}, "alive.node: is missing"),
        (wire.decode_report, {"node": "a", "applied": "web"}, "report.applied: is a string; it must be a list"),
        (wire.decode_report, {"node": "a", "applied": [1]}, r"report.applied\[0\]: is a number"),
        (wire.decode_report, {"node": "a", "failed": {"x": 1}}, "report.failed.x: is a number"),
        (wire.decode_report, {"node": "a", "failed": []}, "report.failed is a list"),
        (wire.decode_report, {"node": "a", "carried": [True]}, r"report.carried\[0\]: is true or false"),
        (wire.decode_report, {"node": "a", "carried": [80.0]}, r"report.carried\[0\]: is a number"),
        (wire.decode_report, {"node": "a", "carried": [0]}, "a port is a number from 1 to 65535"),
        (wire.decode_report, {"node": "a", "carried": [65536]}, "a port is a number from 1 to 65535"),
        (wire.decode_enrol_reply, {"accepted": "true"}, "enrol reply.accepted: is a string"),
        (wire.decode_enrol_reply, {"accepted": 1}, "enrol reply.accepted: is a number"),
        (wire.decode_enrol_request, {"node": "a", "secret": "s", "public_key": "AA"}, "is not base64 with padding"),
        (wire.decode_enrol_request, {"node": "a", "secret": "s", "profile": "x"}, "enrol request.profile is a string"),
        (wire.decode_signed, {"declaration": "AA==\n"}, "envelope.declaration: .* is not base64"),
        (wire.decode_signed, {"declaration": "AB=="}, "envelope.declaration: .* is not base64"),
        (wire.decode_signed, {"declaration": "YWI=="}, "envelope.declaration: .* is not base64"),
        (wire.decode_signed, {"declaration": "_-A="}, "envelope.declaration: .* is not base64"),
        (wire.decode_signed, {"declaration": "AAAÄ"}, "envelope.declaration: .* is not base64"),
    ],
)
def test_a_wrong_type_is_named(decode: Callable[[bytes], object], body: dict[str, JsonValue], why: str) -> None:
    with pytest.raises(Refused, match=why):
        decode(json.dumps(body).encode())


def test_a_newer_peers_fields_are_passed_over() -> None:
    assert wire.decode_alive(b'{"node":"a","mood":{"happy":true},"Node":"b"}') == wire.Alive("a")


def test_null_is_as_good_as_absent() -> None:
    body = b'{"node":"a","applied":null,"failed":null,"refused":null,"carried":null}'
    assert wire.decode_report(body) == wire.Report("a")


def test_a_profile_too_deep_to_be_written_again_is_refused() -> None:
    body = b'{"node":"a","secret":"s","profile":{"x":' + b"[" * 500 + b"]" * 500 + b"}}"
    with pytest.raises(Refused, match="nested too deeply"):
        wire.decode_enrol_request(body)


def test_a_profile_with_a_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(Refused, match=r"profile\.x: is a number beyond"):
        wire.decode_enrol_request(b'{"node":"a","secret":"s","profile":{"x":1e999}}')


def test_ports_are_sent_sorted_and_once() -> None:
    report = wire.Report("a", carried=(5672, 25, 5672))
    assert json.loads(report.encode())["carried"] == [25, 5672]


def test_a_reason_that_is_no_unicode_does_not_stop_a_report() -> None:
    report = wire.Report("a", failed={"file:/x": "held by /opt/\udcff"})
    assert wire.decode_report(report.encode()).failed == {"file:/x": "held by /opt/?"}


def test_secrets_are_not_printed() -> None:
    assert "s3cret" not in repr(wire.EnrolRequest("a", "s3cret", b""))
    assert "s3cret" not in repr(wire.EnrolReply(accepted=True, password="s3cret"))


def test_a_statement_is_signed_line_by_line() -> None:
    assert wire.statement_bytes("report", 7, 12, b"{}") == b"report\n7\n12\n{}"
    assert wire.statement_bytes("report", 7, 0, b"{}") == b"report\n7\n0\n{}"
    assert wire.statement_bytes("alive", 7, None, b"{}") == b"alive\n7\n\n{}"


def test_one_name_for_queue_key_and_account() -> None:
    assert wire.node_queue("a") == "node.a"
    assert wire.join_account("a") == "join.a"


@pytest.mark.parametrize("text", ["amqps://10.0.0.1:5671", "amqps://broker.example.org:1", "amqps://[::1]:65535"])
def test_a_brokers_address(text: str) -> None:
    assert wire.broker_address(text, "here") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "amqp://10.0.0.1:5672",
        "amqps://10.0.0.1",
        "amqps://10.0.0.1:0",
        "amqps://10.0.0.1:65536",
        "amqps://user:pass@10.0.0.1:5671",
        "amqps://10.0.0.1:5671/vhost",
        "amqps://10.0.0.1:5671\n",
        "amqps://::1:5671",
        "AMQPS://10.0.0.1:5671",
    ],
)
def test_no_brokers_address(text: str) -> None:
    with pytest.raises(Refused, match=r"here: .* is no broker's address; write amqps://HOST:PORT"):
        wire.broker_address(text, "here")
