"""What strangers write is bounded and made printable before anything keeps it."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.control import bounds
from agent.errors import Refused
from agent.fields import canonical, parse_json


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("port 80 is held by <redis> & co", "port 80 is held by <redis> & co"),
        ("one\ntwo\tthree", "one two three"),
        ("\x1b[2Jgone", "[2Jgone"),
        ("c1 \x9b31m and \x07bell", "c1 31m and bell"),
        ("abc\u202edef\u2066g", "abcdefg"),
        ("half \ud800 a pair", "half  a pair"),
        ("Grüße, 東京", "Grüße, 東京"),
    ],
)
def test_what_could_move_a_cursor_or_turn_text_around_goes(written, kept):
    assert bounds.clean(written, 100) == kept


def test_a_cut_is_shown():
    assert bounds.clean("x" * 11, 10) == "x" * 9 + "…"
    assert bounds.clean("x" * 10, 10) == "x" * 10


@given(st.text(st.characters(), max_size=60), st.integers(1, 40))
def test_cleaned_text_is_short_printable_and_encodable(text, longest):
    cleaned = bounds.clean(text, longest)
    assert len(cleaned) <= longest
    cleaned.encode("utf-8")
    assert not any(unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for character in cleaned)
    assert bounds.clean(cleaned, longest) == cleaned


def test_failures_beyond_the_bound_are_counted():
    kept = bounds.clean_failures({f"file:/{at}": "no" for at in range(bounds.MOST_FAILURES + 5)})
    assert len(kept) == bounds.MOST_FAILURES + 1
    assert kept["…"] == "and 5 more failures that are not kept"


def test_more_ids_than_a_node_could_hold_are_refused():
    with pytest.raises(Refused, match="20001 ids"):
        bounds.clean_ids(f"file:/{at}" for at in range(bounds.MOST_IDS + 1))


def test_ids_and_ports_are_sorted_and_distinct():
    assert bounds.clean_ids(["web", "db", "web"]) == ("db", "web")
    assert bounds.clean_ports([15672, 4369, 4369]) == (4369, 15672)


def test_a_profile_stays_what_it_is():
    profile = {"arch": "x86_64", "cpus": 4, "engines": ["podman"], "nested": {"yes": True, "none": None}}
    assert bounds.clean_profile(profile) == profile


def test_a_profile_is_readable_again_whatever_it_holds():
    profile = {"bad\x00name": "\ud800\u202e", "far": float("inf"), "deep": [[["\x9b"]]]}
    cleaned = bounds.clean_profile(profile)
    assert cleaned == {"badname": "", "far": "inf", "deep": [[[""]]]}
    assert parse_json(canonical(cleaned).encode("utf-8")) == cleaned


@pytest.mark.parametrize(
    "profile",
    [{"large": ["x" * 1000] * 100}, {"deep": json.loads("[" * 900 + "]" * 900)}],
    ids=["large", "deep"],
)
def test_a_profile_beyond_the_bounds_leaves_a_note(profile):
    cleaned = bounds.clean_profile(profile)
    assert len(canonical(cleaned)) <= bounds.LARGEST_PROFILE
