"""What a statement means for a node's record: every rule of it, asked of the pure functions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import wire
from agent.broker import Message
from agent.control.registry import (
    LARGEST_REPORTED,
    Answer,
    Node,
    Refusal,
    Spoken,
    There,
    after_report,
    next_serial,
    read_alive,
    read_report,
    recovery_copy,
)
from agent.errors import Refused

NOW = 1_000_000.0
NODE = Node(
    "a",
    b"k" * 32,
    enrolled=NOW - 5000,
    version="1",
    last_seen=NOW - 60,
    wanted=5,
    reported=5,
    reported_at=NOW - 60,
    holdings=("file:/x", "file:/y"),
    holdings_serial=5,
    carried=(4369, 5671),
    failures={"file:/y": "no"},
)


def message(key, body, *, user_id="node.a", headers=None, timestamp=int(NOW)):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(data, routing_key=key, user_id=user_id, headers=headers or {}, timestamp=timestamp)


def spoken(serial=5, at=NOW, **fields):
    return Spoken("a", wire.Report("a", **fields), serial, "2", at)


# Reading


def test_an_alive_names_its_node():
    assert read_alive(message("alive", {"node": "a", "newer": [1]})) == There("a", NOW)


def test_a_report_is_read_with_its_headers():
    body = {"node": "a", "applied": ["web", "db"], "failed": {"db": "no\x1b[31m"}, "carried": [2, 1, 2]}
    assert read_report(message("report", body, headers={"serial": 7, "version": "1.2\n"})) == Spoken(
        node="a",
        report=wire.Report("a", ("db", "web"), {"db": "no[31m"}, "", (1, 2)),
        serial=7,
        version="1.2 ",
        at=NOW,
    )


def test_a_report_without_headers_is_understood():
    read = read_report(message("report", {"node": "a"}, timestamp=None))
    assert (read.serial, read.version, read.at) == (None, "", None)


@pytest.mark.parametrize("read", [read_alive, read_report])
@pytest.mark.parametrize(
    ("body", "user_id", "why"),
    [
        ({"node": "a"}, None, "no user_id"),
        ({"node": "a"}, "", "no user_id"),
        ({"node": "a"}, "node.ab", "node.ab"),
        ({"node": "ab"}, "node.a", "speaks for"),
        ({"node": "a"}, "join.a", "join.a"),
        ({"node": "a"}, "a", "speaks for"),
        ({"node": "A"}, "node.A", "DNS label"),
        ({"node": "a\n"}, "node.a\n", "DNS label"),
        ({"node": ["a"]}, "node.a", "must be a string"),
        (b"", "node.a", "not readable JSON"),
        (b'{"node":"a","node":"a"}', "node.a", "twice"),
        (b"\xff", "node.a", "not readable JSON"),
        (b"[" * 100_000, "node.a", "not readable JSON"),
    ],
)
def test_what_is_not_that_nodes_own_word_is_not_understood(read, body, user_id, why):
    with pytest.raises(Refused, match=why):
        read(message("x", body, user_id=user_id))


@pytest.mark.parametrize("serial", ["5", "", -1, LARGEST_REPORTED + 1, 2**63 - 1, True, 5.0])
def test_a_serial_is_a_whole_number_up_to_2_52(serial):
    with pytest.raises(Refused, match="serial"):
        read_report(message("report", {"node": "a"}, headers={"serial": serial}))


@pytest.mark.parametrize("serial", [0, 1, LARGEST_REPORTED])
def test_every_serial_up_to_2_52_is_one(serial):
    assert read_report(message("report", {"node": "a"}, headers={"serial": serial})).serial == serial


# Reports


def test_a_report_replaces_holdings_ports_and_failures():
    after, answer = after_report(NODE, spoken(applied=("file:/z",), failed={"file:/z": "why"}, carried=(1,)), NOW)
    assert after == replace(
        NODE,
        version="2",
        last_seen=NOW,
        holdings=("file:/z",),
        carried=(1,),
        failures={"file:/z": "why"},
        reported_at=NOW,
    )
    assert answer is Answer.NOTHING


def test_an_empty_report_with_a_serial_empties():
    after, _ = after_report(NODE, spoken(), NOW)
    assert (after.holdings, after.carried, after.failures) == ((), (), {})


def test_a_report_with_serial_0_says_nothing_of_holdings():
    after, answer = after_report(NODE, spoken(serial=0, applied=("file:/z",), carried=(1,)), NOW)
    assert (after.holdings, after.holdings_serial, after.carried) == (NODE.holdings, 5, (1,))
    assert (after.reported, answer) == (0, Answer.AGAIN)


def test_an_empty_report_of_a_peer_replaces_nothing_that_is_not_empty():
    after, answer = after_report(NODE, spoken(serial=None), NOW)
    assert (after.holdings, after.carried, after.reported) == (NODE.holdings, NODE.carried, 5)
    assert answer is Answer.NOTHING


def test_a_report_of_a_peer_that_says_something_counts():
    after, _ = after_report(NODE, spoken(serial=None, applied=("web",), carried=(80,)), NOW)
    assert (after.holdings, after.holdings_serial, after.carried, after.reported) == (("web",), 5, (80,), 5)


@pytest.mark.parametrize("serial", [None, 3, 5, 6, 900])
def test_a_refusal_moves_neither_holdings_nor_ports_and_is_not_reported(serial):
    after, answer = after_report(NODE, spoken(serial, refused="no", applied=("file:/z",), carried=(9,)), NOW)
    assert after == replace(NODE, version="2", last_seen=NOW, refusal=Refusal("no", serial, NOW))
    assert answer is Answer.NOTHING


@pytest.mark.parametrize(
    ("before", "told", "after"),
    [
        ({"arch": "x"}, "10.0.0.9", {"arch": "x", "address": "10.0.0.9"}),
        ({"address": "10.0.0.1"}, "fd00::9", {"address": "fd00::9"}),
        ({"address": "10.0.0.1"}, "b.example", {"address": "b.example"}),
        ({"address": "10.0.0.1"}, None, {"address": "10.0.0.1"}),
        ({"address": "10.0.0.1"}, "", {"address": "10.0.0.1"}),
        ({"address": "10.0.0.1"}, 'x"; rm -r /', {"address": "10.0.0.1"}),
        ({"address": "10.0.0.1"}, "10.0.0.9\n", {"address": "10.0.0.1"}),
        ({"address": "10.0.0.1"}, "a" * 254, {"address": "10.0.0.1"}),
        ({"address": "10.0.0.1"}, 7, {"address": "10.0.0.1"}),
    ],
)
def test_a_report_may_say_where_the_node_is_reached_now(before, told, after):
    headers = {"serial": 5} if told is None else {"serial": 5, "address": told}
    read = read_report(message("report", {"node": "a"}, headers=headers))
    node, _ = after_report(replace(NODE, profile=before), read, NOW)
    assert node.profile == after
    refusal = read_report(message("report", {"node": "a", "refused": "no"}, headers=headers))
    assert after_report(replace(NODE, profile=before), refusal, NOW)[0].profile == before


@pytest.mark.parametrize(
    ("wanted", "before", "serial", "answer"),
    [
        (5, 5, 5, Answer.NOTHING),
        (5, 4, 5, Answer.NOTHING),
        (5, 5, 4, Answer.AGAIN),
        (5, 4, 4, Answer.NOTHING),
        (5, 3, 4, Answer.AGAIN),
        (5, 4, 3, Answer.AGAIN),
        (5, None, 0, Answer.AGAIN),
        (5, 0, 0, Answer.NOTHING),
        (5, 5, 6, Answer.ANEW),
        (5, None, LARGEST_REPORTED, Answer.ANEW),
        (0, None, 0, Answer.NOTHING),
        (0, None, 7, Answer.NOTHING),
    ],
)
def test_how_a_reported_serial_is_answered(wanted, before, serial, answer):
    after, given = after_report(replace(NODE, wanted=wanted, reported=before), spoken(serial), NOW)
    assert given is answer
    assert after.reported == serial


@pytest.mark.parametrize(
    ("wanted", "serial", "floor", "answer"),
    [
        (5, 5, 5, Answer.ANEW),
        (5, 4, 5, Answer.ANEW),
        (5, 7, 7, Answer.ANEW),
        (5, 0, 5, Answer.ANEW),
        (5, None, 5, Answer.ANEW),
        (0, 7, 7, Answer.NOTHING),
        (0, 0, 0, Answer.NOTHING),
    ],
)
def test_the_first_report_after_a_restore_proves_nothing(wanted, serial, floor, answer):
    restored = replace(NODE, wanted=wanted, floor=None)
    assert (restored.holds, restored.has_spoken) == (None, False)
    refused, _ = after_report(restored, spoken(serial, refused="no"), NOW)
    assert refused.floor is None
    after, given = after_report(restored, spoken(serial), NOW)
    assert (after.floor, after.holds, after.has_spoken, given) == (floor, None, True, answer)
    after, given = after_report(replace(after, wanted=floor + 1), spoken(floor + 1), NOW)
    assert (after.holds, given) == (floor + 1, Answer.NOTHING)


def test_the_next_serial_is_above_all_that_was_sent_or_reported():
    assert next_serial(NODE) == 6
    assert next_serial(replace(NODE, reported=9)) == 10
    assert next_serial(replace(NODE, wanted=0, reported=None)) == 1


# Last seen


@pytest.mark.parametrize(
    ("last_seen", "said", "after"),
    [
        (NOW - 60, NOW, NOW),
        (NOW - 60, NOW - 30, NOW - 30),
        (NOW - 60, NOW - 90, NOW - 60),
        (NOW - 60, NOW + 9000, NOW),
        (NOW - 60, None, NOW - 60),
        (None, NOW - 90, NOW - 90),
        (None, None, NOW),
        (NOW + 20, NOW, NOW + 20),
    ],
    ids=[
        "now",
        "a while ago",
        "before",
        "a wrong clock",
        "no clock",
        "first",
        "first, no clock",
        "our clock went back",
    ],
)
@pytest.mark.parametrize("refused", ["", "no"])
def test_a_report_moves_last_seen_to_its_own_time_at_most(last_seen, said, after, refused):
    node, _ = after_report(replace(NODE, last_seen=last_seen), spoken(at=said, refused=refused), NOW)
    assert node.last_seen == after


# The recovery copy


@pytest.mark.parametrize(
    ("holdings", "declared", "since", "copy"),
    [
        ((), {}, 0, ()),
        (("a", "b"), {"a": 1}, 1, ("a",)),
        (("a",), {"a": 1, "b": 1}, 1, ("a",)),
        (("a",), {"a": 1, "b": 2}, 1, ("a", "b")),
        ((), {"a": 1, "b": 1}, 0, ("a", "b")),
        (("never-declared",), {}, 0, ()),
    ],
    ids=["nothing", "held, never declared", "declared, given up", "declared since", "never reported", "hostile"],
)
def test_recovery_copy(holdings, declared, since, copy):
    assert recovery_copy(holdings, declared, since) == copy


names = st.sampled_from("abcdef")


@given(st.lists(names), st.dictionaries(names, st.integers(1, 9)), st.integers(0, 9))
def test_the_recovery_copy_never_holds_what_was_never_declared(holdings, declared, since):
    copy = recovery_copy(holdings, declared, since)
    assert set(copy) <= set(declared)
    assert set(copy) >= set(holdings) & set(declared)
    assert list(copy) == sorted(set(copy))
