"""Trouble is said once, and its end once."""

from __future__ import annotations

import logging

from agent.control.trouble import Trouble


def test_each_reason_is_said_once_and_the_end_once(caplog):
    caplog.set_level(logging.INFO)
    trouble = Trouble("It is over.")
    trouble.end()
    for sentence in ("no broker", "no login", "no broker", "no login"):
        trouble.begin(sentence)
    trouble.end()
    trouble.end()
    trouble.begin("no broker")
    assert caplog.messages == ["no broker", "no login", "It is over.", "no broker"]
