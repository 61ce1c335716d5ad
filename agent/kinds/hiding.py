"""Keeping late values (secrets, fingerprints) out of what a failure says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agent.errors import Unavailable

# What is shorter stands in other words by chance, and to hide it there would tell what it is.
_OF_ITSELF = 8


@contextmanager
def hiding(late: Mapping[str, str]) -> Iterator[None]:
    """Take late values out of what a failure says: a program may have written them to its log."""
    try:
        yield
    except Unavailable as error:
        shown = hidden(str(error), late)
        if shown == str(error):
            raise
        raise Unavailable(shown) from None


def hidden(text: str, late: Mapping[str, str]) -> str:
    """A text with the names of late values in their places: of long ones anywhere, of short ones where they stand as
    a word. Of a value of several lines each long line counts too, since a log may hold but some.
    """
    names: dict[str, str] = {}
    for name, value in late.items():
        for part in (value, *(line for line in value.splitlines() if len(line) >= _OF_ITSELF)):
            if part:
                names.setdefault(part, name)
    if not names:
        return text
    # All at once, the longest first: one may be in another, or in another's name.
    pattern = "|".join(map(_place, sorted(names, key=len, reverse=True)))
    return re.sub(pattern, lambda found: f"${{{names[found[0]]}}}", text)


def _place(value: str) -> str:
    return re.escape(value) if len(value) >= _OF_ITSELF else rf"(?<!\w){re.escape(value)}(?!\w)"
