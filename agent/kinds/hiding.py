"""Keeping late values (secrets, fingerprints) out of what a failure says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agent.errors import Unavailable


@contextmanager
def hiding(late: Mapping[str, str]) -> Iterator[None]:
    """Take late values out of what a failure says: a program may have written them to its log."""
    try:
        yield
    except Unavailable as error:
        shown = str(error)
        for name, value in late.items():
            if value:
                shown = shown.replace(value, f"${{{name}}}")
        if shown == str(error):
            raise
        raise Unavailable(shown) from None
