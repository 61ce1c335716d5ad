"""How the family's commands are added: `control NOUN VERB`, each with --state."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from agent.cli import options


def noun(verbs: options.Commands, name: str, about: str) -> options.Commands:
    """Add a noun; what is returned takes its verbs."""
    return verbs.add_parser(name, help=about).add_subparsers(metavar="COMMAND", required=True)


def verb(
    verbs: options.Commands, name: str, run: Callable[[argparse.Namespace], int], about: str
) -> argparse.ArgumentParser:
    """Add a command that `run` does."""
    parser = verbs.add_parser(name, help=about)
    options.state_option(parser)
    parser.set_defaults(run=run)
    return parser
