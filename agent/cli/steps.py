"""How what happens is printed while it happens: a plain line each, at once."""

from __future__ import annotations

from contextlib import suppress

from agent.reconcile import Step


def print_step(step: Step) -> None:
    """Position, id, what was done, seconds, and why."""
    place = f"{step.index:>3}/{step.total:<3} " if step.total else ""
    # That a thing was made because it wasn't there goes without saying.
    detail = f"  {step.detail}" if step.detail and step.what != "created" else ""
    print_line(f"{place}{step.id}  {step.what}  {step.seconds:.1f} s{detail}")


def print_line(text: str) -> None:
    """A line for a person. What is done goes on when nobody reads it, or the disk that it goes to is full."""
    with suppress(OSError):
        print(text, flush=True)
