"""`agent up`: raise what this file carries, found or join a mesh, and hold what it declares until stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli import options

if TYPE_CHECKING:
    from agent.token import Token


def add(commands: options.Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "up",
        help="raise what this file carries, join a mesh, and wait for declarations",
        description="Without a token this machine founds a mesh of its own; with one it joins another's.",
    )
    options.state_option(parser)
    parser.add_argument("--token-file", metavar="FILE", help="the token to join with; - reads it from standard input")
    parser.add_argument(
        "--once", action="store_true", help="end when all that waits is applied: 0 fine, 2 something failed"
    )
    options.bundle_options(parser)
    parser.add_argument(
        "--remake", action="append", default=[], metavar="ID", help="make a lost secret or certificate anew"
    )
    parser.add_argument(
        "--alive-interval", type=options.seconds, default=60.0, metavar="SECONDS", help="how often to say alive (60)"
    )
    parser.add_argument(
        "--drift-interval",
        type=options.seconds,
        default=300.0,
        metavar="SECONDS",
        help="how often what is here is looked at again and put right (300)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`agent up`."""
    from agent.build import running_file
    from agent.bundle import open_bundle
    from agent.cli.bundle import carrying_file
    from agent.cli.plan import print_preview
    from agent.cli.steps import print_line, print_step
    from agent.node import running
    from agent.node.link import Manner
    from agent.node.plans import Asked
    from agent.node.worker import Rhythm

    asked = Asked(
        state=arguments.state,
        bundle=open_bundle(arguments.bundle or carrying_file()),
        running_file=running_file(),
        name=arguments.name,
        token=_token(arguments.token_file),
        settings=dict(map(options.setting, arguments.set)),
        remake=tuple(arguments.remake),
        prune=arguments.prune,
    )
    once = 60.0 if arguments.once else None
    manner = Manner(arguments.alive_interval, once, rhythm=Rhythm(drift=arguments.drift_interval))
    voice = running.Voice(print_line, print_step, print_preview)
    return running.up(asked, manner, voice, refuse_newer_store)


def refuse_newer_store(state: Path) -> None:
    """Refused when this machine's control plane keeps its store as only a newer program can read it."""
    store = state / "control" / "store.db"
    if store.exists():  # what it takes to know is loaded on a founder alone
        from agent.control.store import refuse_newer

        refuse_newer(state)


def _token(file: str | None) -> Token | None:
    from agent.token import parse_token

    if file is None:
        return None
    return parse_token(options.read_input("the token file", file).decode("utf-8", "replace"))
