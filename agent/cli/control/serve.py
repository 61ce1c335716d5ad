"""`agent control serve`: the control plane itself."""

from __future__ import annotations

import argparse
import sys

from agent.cli import options
from agent.cli.control.command import verb


def add(verbs: options.Commands) -> None:
    """Add the command."""
    serve = verb(verbs, "serve", run, "run the control plane (the substrate starts it)")
    serve.add_argument(
        "--alive-interval", type=options.seconds, default=60.0, metavar="SECONDS", help="of the nodes (60)"
    )
    serve.add_argument(
        "--missed",
        type=options.number(1, 1000),
        default=3,
        metavar="N",
        help="how many alives a node may miss before it is out of touch (3)",
    )
    serve.add_argument(
        "--require-signatures",
        type=_yes_or_no,
        nargs="?",
        const=True,
        default=False,
        metavar="true|false",
        help="let no statement count that its node did not sign (false)",
    )


def _yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError("must be true or false")
    return text == "true"


def run(arguments: argparse.Namespace) -> int:
    """`control serve`."""
    import logging
    import threading

    from agent.control.service import serve, stop_on_signals

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    stop = threading.Event()
    stop_on_signals(stop)
    serve(
        arguments.state,
        stop=stop,
        alive_interval=arguments.alive_interval,
        missed=arguments.missed,
        require_signatures=arguments.require_signatures,
    )
    return 0
