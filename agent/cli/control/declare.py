"""`agent control declare`: what a node should hold, beside what is assigned to it."""

from __future__ import annotations

import argparse

from agent.cli import options
from agent.cli.control.command import verb
from agent.cli.control.lists import read_list
from agent.cli.control.outcome import follow, waiting_options


def add(verbs: options.Commands) -> None:
    """Add the command."""
    declare = verb(verbs, "declare", run, "say what a node should hold, and wait for its report")
    declare.add_argument("node", metavar="NAME", help="the node")
    declare.add_argument("file", metavar="FILE", help="a TOML or JSON list of resources; - reads standard input")
    declare.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the list")
    declare.add_argument("--retire", action="store_true", help="an empty list is meant: remove all that is declared")
    waiting_options(declare)


def run(arguments: argparse.Namespace) -> int:
    """`control declare`: 0 applied, 1 refused by the node, 2 something of it failed or nothing was heard."""
    from agent.control.plane import open_control

    document = read_list(arguments.file)
    with open_control(arguments.state) as control:
        declared = control.declare(
            arguments.node, document, dict(map(options.setting, arguments.set)), retire=arguments.retire
        )
        return follow(control, declared, arguments)
