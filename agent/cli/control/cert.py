"""`agent control cert …`: the broker's certificate."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from agent.cli import options
from agent.cli.control.command import noun, verb

if TYPE_CHECKING:
    from agent.control.renewal import Unaware


def add(verbs: options.Commands) -> None:
    """Add the noun's commands."""
    certificates = noun(verbs, "cert", "the broker's certificate")
    renew = verb(certificates, "renew", run_renew, "make the next one, tell every node, wait for all, and swap")
    renew.add_argument("--force", action="store_true", help="swap even if nodes don't know the next one yet")
    renew.add_argument(
        "--timeout", type=options.seconds, default=600.0, metavar="SECONDS", help="how long to wait for nodes (600)"
    )


def run_renew(arguments: argparse.Namespace) -> int:
    """`control cert renew`: 0 swapped, 2 when somebody would be locked out, who is named."""
    import time

    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        pin = control.begin_renewal()
        print(f"the next certificate is {pin}; every node is told of it", flush=True)
        deadline = time.monotonic() + arguments.timeout
        waiting = control.unaware_of(pin)
        # A token learns nothing by waiting.
        while waiting.nodes and not arguments.force and time.monotonic() < deadline:
            time.sleep(min(0.5, max(0.0, deadline - time.monotonic())))
            waiting = control.unaware_of(pin)
        if waiting and not arguments.force:
            print(f"not swapped: {_left(waiting)}, or say --force", file=sys.stderr)
            return 2
        control.swap_certificates()
    if waiting.nodes:
        again = ", ".join(waiting.nodes)
        print(f"{again} must join again, with a token from `agent control token create NAME --replace`")
    if waiting.tokens:
        print(f"of no more use is the token for {', '.join(waiting.tokens)}: make another")
    print("swapped; the agent here restarts the broker with it, and the old one counts no longer then")
    return 0


def _left(waiting: Unaware) -> str:
    """Who would be locked out, and what to do about it."""
    nodes = (
        f"{', '.join(waiting.nodes)} would be locked out, having yet to report that they know the next certificate; "
        "run this again when they are back, or remove them"
    )
    tokens = (
        f"the token for {', '.join(waiting.tokens)} is older than the next certificate, and would let nobody in any "
        "more; make another, or revoke it"
    )
    return "; and ".join([nodes] * bool(waiting.nodes) + [tokens] * bool(waiting.tokens))
