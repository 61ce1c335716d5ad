"""How two texts differ, as diff(1) shows it."""

from __future__ import annotations

import difflib


def unified(old: str, new: str, before: str, after: str) -> str:
    """The unified difference of two texts, called `before` and `after`; "" when there is none.

    Only a line feed ends a line, and a last line without one is told apart.
    """
    lines = difflib.unified_diff(_lines(old), _lines(new), before, after)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]
