"""How lists look: columns for people, JSON for programs. Times are relative for people, RFC 3339 for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agent.errors import Unavailable

if TYPE_CHECKING:
    from agent.fields import JsonValue


def finish() -> None:
    """Have everything written that was printed. Unavailable when that can't be, BrokenPipeError when nobody reads."""
    if sys.stdout is None:  # closed by whoever started this
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise Unavailable(f"what was printed could not be written: {error.strerror}") from error


def drop_output() -> None:
    """Print to nowhere from now on; else Python complains at its end of what it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print left-aligned columns, two blanks between them; nothing but the header when there is no row."""
    table = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_json(value: JsonValue) -> None:
    """Print a value for a program to read."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def ago(then: float, now: float) -> str:
    """How long ago, in the two units a person reads: `12s`, `4m`, `3h 5m`, `2d 1h`."""
    return duration(max(0.0, now - then))


def duration(seconds: float) -> str:
    """A length of time as `12s`, `4m`, `3h 5m`, `2d 1h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 60:
        return f"{minutes}m"
    if hours < 24:
        return f"{hours}h {minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{days}d {hours % 24}h" if hours % 24 else f"{days}d"


def moment(seconds: float) -> str:
    """A time (seconds since the epoch) as RFC 3339 in UTC."""
    from datetime import datetime, timezone

    from agent.resources import format_time

    return format_time(datetime.fromtimestamp(seconds, timezone.utc))


def print_plan(rows: Iterable[tuple[str, str, str, str]], warnings: Iterable[str]) -> None:
    """Print (change, id, reason, difference) lines, each difference indented below its line."""
    for change, id, reason, difference in rows:
        # That a thing is made because it isn't there goes without saying.
        print(f"{change:<7} {id}" + (f"  {reason}" if reason and change != "create" else ""))
        for line in difference.removesuffix("\n").split("\n") if difference else ():
            print(f"        {_visible(line)}")
    for warning in warnings:
        print(f"warning: {warning}")


def _visible(line: str) -> str:
    """What a file holds is shown, never obeyed by the terminal."""
    return "".join(sign if sign.isprintable() or sign == "\t" else repr(sign)[1:-1] for sign in line)
