"""What is printed for a person."""

from __future__ import annotations

import pytest

from agent.cli.output import duration, print_plan


def test_a_plan_shows_what_a_file_holds_without_obeying_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan([("change", "file:/a", "other content", "-\x1b[2Jold\u2028\r\n+new\tone\n")], ["mind this"])
    assert capsys.readouterr().out.split("\n") == [
        "change  file:/a  other content",
        "        -\\x1b[2Jold\\u2028\\r",
        "        +new\tone",
        "warning: mind this",
        "",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.9, "0s"), (59, "59s"), (60, "1m"), (3600, "1h"), (3900, "1h 5m"), (86400, "1d"), (90000, "1d 1h")],
)
def test_a_length_of_time_is_told_in_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words
