"""`agent control plan`: what a declaration would change on a node, without declaring it."""

from __future__ import annotations

import argparse

from agent.cli import options
from agent.cli.control.command import verb
from agent.cli.control.lists import read_list

CHANGES = 2


def add(verbs: options.Commands) -> None:
    """Add the command."""
    plan = verb(verbs, "plan", run, "what a declaration would create, change, keep or remove, and why")
    plan.add_argument("node", metavar="NODE", help="the node")
    plan.add_argument(
        "file", metavar="FILE", nargs="?", help="the list to declare (what is arranged); - reads standard input"
    )
    plan.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the list")
    plan.add_argument("--exit-code", action="store_true", help="exit with 2 when anything would change")
    options.output_option(plan)


def run(arguments: argparse.Namespace) -> int:
    """`control plan`."""
    from agent.cli.output import print_json, print_plan
    from agent.control.plane import open_control

    document = None if arguments.file is None else read_list(arguments.file)
    settings = dict(map(options.setting, arguments.set))
    with open_control(arguments.state) as control:
        compared = control.arranging.plan(arguments.node, document, settings)
    rows = [(line.change.value, line.id, line.reason, line.difference) for line in compared.lines]
    warnings = [f"what is assigned waits for the first report of {arguments.node}"] if compared.waits else []
    if arguments.output == "json":
        print_json(
            {
                "resources": [
                    {"change": change, "id": id, "reason": reason or None, "difference": difference or None}
                    for change, id, reason, difference in rows
                ],
                "warnings": list(warnings),
            }
        )
    else:
        print_plan(rows, warnings)
    return CHANGES if arguments.exit_code and compared.changes else 0
