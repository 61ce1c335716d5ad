"""`agent control assign`, `unassign` and `rollback`: which modules a node has, and what it had before."""

from __future__ import annotations

import argparse

from agent.cli import options
from agent.cli.control.command import verb
from agent.cli.control.outcome import follow, waiting_options


def add(verbs: options.Commands) -> None:
    """Add the commands."""
    assign = verb(verbs, "assign", run_assign, "give a node a module, with host ports of its own")
    assign.add_argument("module", metavar="MODULE", help="the module")
    assign.add_argument("node", metavar="NODE", help="the node")
    assign.add_argument("--as", dest="called", default="", metavar="NAME", help="the assignment's name (the module's)")
    assign.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the module")
    waiting_options(assign)

    unassign = verb(verbs, "unassign", run_unassign, "take an assignment from a node")
    unassign.add_argument("called", metavar="NAME", help="the assignment")
    unassign.add_argument("node", metavar="NODE", help="the node")
    waiting_options(unassign)

    rollback = verb(verbs, "rollback", run_rollback, "declare to a node what it was declared before, as a new serial")
    rollback.add_argument("node", metavar="NODE", help="the node")
    rollback.add_argument(
        "--to",
        type=options.number(1, 2**53 - 1),
        metavar="SERIAL",
        help="what was declared with this serial (the last other content)",
    )
    waiting_options(rollback)


def run_assign(arguments: argparse.Namespace) -> int:
    """`control assign`: the exit codes of `control declare`."""
    from agent.control.plane import open_control

    settings = dict(map(options.setting, arguments.set))
    with open_control(arguments.state) as control:
        declared = control.arranging.assign(arguments.module, arguments.node, arguments.called, settings)
        for row in control.arranging.ports():
            if (row.node, row.assignment) == (arguments.node, arguments.called or arguments.module) and row.name:
                print(f"port {row.name} of {row.assignment} is {row.port} on {row.node}", flush=True)
        return follow(control, declared, arguments)


def run_unassign(arguments: argparse.Namespace) -> int:
    """`control unassign`: the exit codes of `control declare`."""
    from agent.control.declaring import Waits
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        declared = control.arranging.unassign(arguments.called, arguments.node)
        if isinstance(declared, Waits):
            print(f"nothing was declared to {arguments.node}, so there is nothing to take away")
            return 0
        return follow(control, declared, arguments)


def run_rollback(arguments: argparse.Namespace) -> int:
    """`control rollback`: the exit codes of `control declare`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        return follow(control, control.arranging.rollback(arguments.node, arguments.to), arguments)
