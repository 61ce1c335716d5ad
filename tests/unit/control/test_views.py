"""What is shown of a node is a function of its record and the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.control.enrolment import IssuedToken, Spending
from agent.control.registry import Node, Refusal
from agent.control.views import Presence, TokenStanding, node_detail, node_row, token_row

NOW = 1_000_000.0
NODE = Node("a", b"k" * 32, enrolled=NOW - 5000, last_seen=NOW - 30, wanted=4, reported=4, reported_at=NOW - 30)


@pytest.mark.parametrize(
    ("last_seen", "presence", "silent"),
    [
        (None, "never spoken", None),
        (NOW, "here", 0),
        (NOW + 5, "here", 0),
        (NOW - 180, "here", 180),
        (NOW - 181, "out of touch", 181),
    ],
)
def test_presence(last_seen, presence, silent):
    row = node_row(replace(NODE, last_seen=last_seen), NOW, 180.0)
    assert (row.presence.value, row.silent) == (presence, silent)


def test_patience_is_settable():
    assert node_row(NODE, NOW, 29.0).presence is Presence.OUT_OF_TOUCH


def test_a_row_counts():
    node = replace(NODE, carried=(1, 2), failures={"file:/x": "no"}, reported=3)
    row = node_row(node, NOW, 180.0)
    assert (row.wanted, row.applied, row.carried, row.failures, row.refusal) == (4, 3, 2, 1, "")


@pytest.mark.parametrize(
    ("refusal", "reported", "shown"),
    [
        (Refusal("no", 4, NOW), 3, "no"),
        (Refusal("no", 4, NOW), None, "no"),
        (Refusal("a replay", 3, NOW), 4, ""),
        (Refusal("the one before", 3, NOW), 2, ""),
        (Refusal("not verified", None, NOW), 3, "not verified"),
        (Refusal("not verified, and since then it reported", None, NOW - 60), 4, ""),
    ],
)
def test_a_refusal_is_in_the_list_while_it_stands(refusal, reported, shown):
    node = replace(NODE, refusal=refusal, reported=reported)
    assert node_row(node, NOW, 180.0).refusal == shown
    assert node_detail(node, NOW, 180.0).refusal == refusal


@pytest.mark.parametrize(
    ("offset", "shown"), [(None, None), (0.0, None), (5.0, None), (-5.0, None), (5.5, 5.5), (-7200.0, -7200.0)]
)
def test_a_clock_that_is_off_is_told(offset, shown):
    assert node_row(replace(NODE, clock_offset=offset), NOW, 180.0).clock_offset == shown


def test_what_is_shown_of_a_token():
    token = IssuedToken(1, "a", b"digest", "amqps://h:1", b"s" * 32, made=NOW - 60, expires=NOW)
    spent = replace(token, spending=Spending(b"k" * 32, "password", b"digest"))
    assert token_row(token, NOW - 1).standing is TokenStanding.UNSPENT
    assert token_row(token, NOW).standing is TokenStanding.EXPIRED
    assert token_row(spent, NOW).standing is TokenStanding.SPENT
