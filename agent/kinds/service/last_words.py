"""What is said of a service that could not be raised: when it ended or how it stood, and its own last line."""

from __future__ import annotations

from collections.abc import Iterable

from agent.kinds.readiness import NotReady
from agent.resources import specs

_LINE_LENGTH = 300


def last_of(lines: Iterable[str]) -> str:
    """The last line with something in it, without what a terminal obeys; "" when there is none."""
    shown = ["".join(filter(str.isprintable, line)).strip() for line in lines]
    return next((line[:_LINE_LENGTH] for line in reversed(shown) if line), "")


def quote(line: str, place: str) -> str:
    """The sentence that gives the last line; `place` is where it was written."""
    return f"The last line of {place}: {line}" if line else f"It wrote nothing to {place}."


def ended(spec: specs.Service, *, left_others: bool) -> str:
    """It ended while it was waited for, by itself or leaving others behind."""
    when = "before it was ready" if spec.ready else "at once"
    if left_others:
        return (
            f"The service {spec.name} ended {when} and left others running, which were ended; have its command "
            "stay in the foreground."
        )
    return f"The service {spec.name} ended {when}."


def not_ready(spec: specs.Service, error: NotReady) -> str:
    """Its time was over; the error says how it stood."""
    seconds = spec.ready.timeout if spec.ready else 0
    return f"The service {spec.name} was not ready within {seconds} seconds and was stopped: {error}."
