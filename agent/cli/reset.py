"""`agent reset`: lists, then removes, all that the ledger put here, last first, and the agent's own folder."""

from __future__ import annotations

import argparse
import sys

from agent.cli import options


def add(commands: options.Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("reset", help="remove all that the agent put on this machine")
    options.state_option(parser)
    parser.add_argument("--yes", action="store_true", help="don't ask, even at a terminal")
    parser.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`agent reset`."""
    from agent.cli.steps import print_step
    from agent.node import leaving

    with leaving.begin(arguments.state) as farewell:
        held = farewell.entries()
        if not held:
            print("the ledger holds nothing")
        for entry in held:
            print(f"  {entry.resource.id} ({entry.origin.value}, {'found' if entry.found else 'made'})")
        for path in farewell.installed():
            print(f"  {path} (the agent's own)")
        if farewell.founder:
            print("this machine founded its mesh: the mesh, its signing keys and its record of nodes end with it")
        if arguments.dry_run:
            return 0
        if not arguments.yes and sys.stdin.isatty() and input("remove all of this? [y/N] ").strip().lower() != "y":
            print("nothing was removed")
            return 1
        failed = farewell.remove(print_step)
    if failed:
        print(f"{len(failed)} could not be removed; mend what is said above and run `agent reset` again")
        return 2
    print(f"{arguments.state} is gone, and nothing is left but what is said above")
    return 0
