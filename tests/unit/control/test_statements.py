"""Whose word a statement is, and whether it is news."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.broker import Message
from agent.control.statements import LARGEST_COUNTER, Fresh, Repeated, Speaker, judge
from agent.envelope import SigningKey
from agent.errors import Refused

KEY = SigningKey(b"k" * 32)
SPEAKER = Speaker(KEY.public, 7)


def signature(text, key=KEY):
    return base64.b64encode(key.sign(text)).decode("ascii")


def statement(headers, key="report", body=b'{"node":"a"}'):
    return Message(body, routing_key=key, headers=headers)


def test_a_signature_covers_key_counter_serial_and_body():
    signed = {"counter": 8, "serial": 5, "signature": signature(b'report\n8\n5\n{"node":"a"}')}
    assert judge(statement(signed), 5, SPEAKER, required=True) == Fresh(8)
    alive = {"counter": 9, "signature": signature(b'alive\n9\n\n{"node":"a"}')}
    assert judge(statement(alive, "alive"), None, SPEAKER, required=True) == Fresh(9)


@pytest.mark.parametrize(
    ("message", "serial"),
    [
        (statement({"counter": 8, "signature": signature(b"report\n8\n5\n{}")}), 5),
        (statement({"counter": 8, "signature": signature(b'report\n9\n5\n{"node":"a"}')}), 5),
        (statement({"counter": 8, "signature": signature(b'report\n8\n6\n{"node":"a"}')}), 5),
        (statement({"counter": 8, "signature": signature(b'report\n8\n\n{"node":"a"}')}), 5),
        (statement({"counter": 8, "signature": signature(b'alive\n8\n5\n{"node":"a"}')}), 5),
        (statement({"counter": 8, "signature": signature(b'report\n8\n5\n{"node":"a"}', SigningKey(b"x" * 32))}), 5),
        (statement({"counter": 7, "signature": "AAAA"}), 5),
        (statement({"counter": 8, "signature": "no base64"}), 5),
        (statement({"counter": 8, "signature": 5}), 5),
        (statement({"counter": 8}), 5),
        (statement({"signature": signature(b'report\n\n5\n{"node":"a"}')}), 5),
        (statement({"counter": "8", "signature": signature(b'report\n8\n5\n{"node":"a"}')}), 5),
        (statement({"counter": 0, "signature": signature(b'report\n0\n5\n{"node":"a"}')}), 5),
        (statement({"counter": 2**63, "signature": signature(b'report\n9223372036854775808\n5\n{"node":"a"}')}), 5),
    ],
)
def test_what_is_not_signed_so_is_refused(message, serial):
    with pytest.raises(Refused, match=r"counter|signature"):
        judge(message, serial, SPEAKER, required=False)


def test_an_unsigned_one_counts_unless_signatures_are_required():
    assert judge(statement({"serial": 5}), 5, SPEAKER, required=False) == Fresh(7)
    with pytest.raises(Refused, match="require signatures"):
        judge(statement({"serial": 5}), 5, SPEAKER, required=True)


@given(st.integers(1, LARGEST_COUNTER), st.integers(0, LARGEST_COUNTER))
def test_only_a_higher_counter_is_news(counter, last):
    signed = {"counter": counter, "signature": signature(f'report\n{counter}\n\n{{"node":"a"}}'.encode())}
    verdict = judge(statement(signed), None, Speaker(KEY.public, last), required=False)
    assert verdict == (Fresh(counter) if counter > last else Repeated())
