"""How two texts differ."""

from __future__ import annotations

from agent.difference import unified


def test_equal_texts_do_not_differ() -> None:
    assert unified("a\n", "a\n", "is", "will be") == ""


def test_only_a_line_feed_ends_a_line() -> None:
    shown = unified("one\ntwo\n", "one\n2\u2028\r\n", "is", "will be")
    assert shown == "--- is\n+++ will be\n@@ -1,2 +1,2 @@\n one\n-two\n+2\u2028\r\n"


def test_a_missing_line_feed_at_the_end_is_said() -> None:
    shown = unified("one\ntwo\n", "one\ntwo", "is", "will be")
    assert shown.endswith("-two\n+two\n\\ No newline at end of file\n")
