"""`agent ports`: which host ports the resources here declare, whose they are, and who has them open now."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from agent.cli import options

if TYPE_CHECKING:
    from agent.host.sockets import Holder


def add(commands: options.Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("ports", help="the host ports that resources here declare")
    options.state_option(parser)
    options.output_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`agent ports`."""
    import time

    from agent.cli.output import print_json, print_table
    from agent.host import sockets
    from agent.node.ledger import open_ledger

    ledger = open_ledger(arguments.state, time.time, write=False)
    rows = [(binding, sockets.holders([binding.port.endpoint])) for binding in ledger.bindings()]
    if arguments.output == "json":
        print_json(
            [
                {
                    "port": binding.port.number,
                    "protocol": binding.port.protocol,
                    "address": binding.port.address,
                    "origin": binding.origin.value,
                    "resource": binding.owner,
                    "open_by": [pid for holder in holders for pid in holder.pids],
                }
                for binding, holders in rows
            ]
        )
        return 0
    print_table(
        ("PORT", "ORIGIN", "RESOURCE", "OPEN BY"),
        [
            (
                str(binding.port),
                binding.origin.value,
                binding.owner,
                _program(holders[0]) if holders and holders[0].pids else "-",
            )
            for binding, holders in rows
        ],
    )
    return 0


def _program(holder: Holder) -> str:
    """Its name without its arguments, and its first process."""
    return f"{holder.command.partition(' ')[0].rpartition('/')[2]} ({holder.pids[0]})"
