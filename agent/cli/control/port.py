"""`agent control port …`: which host ports are assigned, and where they are taken from."""

from __future__ import annotations

import argparse

from agent.cli import options
from agent.cli.control.command import noun, verb


def add(verbs: options.Commands) -> None:
    """Add the noun's commands."""
    ports = noun(verbs, "port", "the host ports that assignments have")
    listing = verb(ports, "list", run_list, "every assigned host port, and those that are not free again yet")
    options.output_option(listing)
    choose = verb(ports, "range", run_range, "show or choose where host ports are taken from")
    choose.add_argument("range", metavar="LOW-HIGH", nargs="?", help="take them from there; what is assigned stays")


def run_list(arguments: argparse.Namespace) -> int:
    """`control port list`."""
    from agent.cli.output import print_json, print_table
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        rows = control.arranging.ports()
    if arguments.output == "json":
        print_json(
            [
                {
                    "node": row.node,
                    "port": row.port.number,
                    "protocol": row.port.protocol,
                    "assignment": row.assignment,
                    "name": row.name or None,
                    "freed_by": row.freed,
                }
                for row in rows
            ]
        )
        return 0
    print_table(
        ("NODE", "PORT", "ASSIGNMENT", "NAME"),
        [
            (row.node, str(row.port), row.assignment, row.name or f"given back, once {row.freed} is reported")
            for row in rows
        ],
    )
    return 0


def run_range(arguments: argparse.Namespace) -> int:
    """`control port range`."""
    from agent.control.plane import open_control
    from agent.control.ports import parse_range

    with open_control(arguments.state) as control:
        if arguments.range is not None:
            control.arranging.set_port_range(parse_range(arguments.range))
        print(control.arranging.port_range)
    return 0
