"""What was declared, and what the nodes say of it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.cli import options

if TYPE_CHECKING:
    from agent.control.declaring import Declared, Outcome, Waits
    from agent.control.plane import Control


def waiting_options(parser: argparse.ArgumentParser) -> None:
    """Add whether, and how long, a command waits for the node's report."""
    parser.add_argument("--detach", action="store_true", help="don't wait for the report")
    parser.add_argument(
        "--timeout", type=options.seconds, default=600.0, metavar="SECONDS", help="how long to wait (600)"
    )


def follow(control: Control, declared: Declared | Waits, arguments: argparse.Namespace) -> int:
    """Say what was declared and, unless it is left alone, what the nodes say of it; the exit code."""
    from agent.control.declaring import Waits

    if isinstance(declared, Waits):
        print(f"{declared.node} has never reported: this waits, and is declared when that node first does", flush=True)
        return 0
    why = f"which refers to {declared.node},"
    return follow_all(control, [(declared, ""), *((one, why) for one in declared.also)], arguments)


def follow_all(control: Control, followed: Sequence[tuple[Declared, str]], arguments: argparse.Namespace) -> int:
    """As `follow`, for declarations each with the reason for it, if that isn't known to who asked."""
    codes = []
    for one, why in followed:
        told = f", {why}" if why else ""
        print(f"declaration {one.serial} for {one.node}{told} is signed and on its way", flush=True)
    for one, _ in followed:
        if arguments.detach:
            continue
        if not one.has_spoken:
            print(f"{one.node} has yet to speak: it will be applied when that node does", flush=True)
            continue
        codes.append(print_outcome(one.node, control.wait(one, arguments.timeout)))
    return worst(codes)


def print_outcome(node: str, outcome: Outcome) -> int:
    """Say what a node said; the exit code: 0 applied, 1 refused, 2 failed in part or not heard."""
    from agent.control.declaring import Applied, RefusedBy

    if isinstance(outcome, Applied):
        if not outcome.failed:
            print(f"{node} has applied it", flush=True)
            return 0
        for id, why in outcome.failed.items():
            print(f"{node}: {id} failed: {why}", flush=True)
        return 2
    if isinstance(outcome, RefusedBy):
        print(f"{node} refused it, and changed nothing: {outcome.why}", flush=True)
        return 1
    print(f"nothing was heard of {node} yet; it stays declared, and `agent control node show {node}` tells", flush=True)
    return 2


def worst(codes: list[int]) -> int:
    """The exit code of several: a refusal before a failure before nothing."""
    return 1 if 1 in codes else max(codes, default=0)
