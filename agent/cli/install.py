"""`agent install` and `agent uninstall`: have systemd run the agent, and no longer."""

from __future__ import annotations

import argparse

from agent.cli import options


def add(commands: options.Commands) -> None:
    """Add both commands."""
    install = commands.add_parser(
        "install",
        help="have systemd run the agent, now and after every reboot",
        description="An agent that runs in a shell, or of another file, ends and the unit takes over with this file; "
        "what it raised is not touched.",
    )
    options.state_option(install)
    install.set_defaults(run=run_install)
    uninstall = commands.add_parser("uninstall", help="have systemd no longer run the agent; what it raised runs on")
    options.state_option(uninstall)
    uninstall.set_defaults(run=run_uninstall)


def run_install(arguments: argparse.Namespace) -> int:
    """`agent install`."""
    from agent.build import running_file
    from agent.bundle import open_bundle
    from agent.cli.bundle import carrying_file
    from agent.cli.steps import print_line
    from agent.cli.up import refuse_newer_store
    from agent.node import installing
    from agent.node.plans import Asked

    asked = Asked(arguments.state, open_bundle(carrying_file()), running_file())
    installing.install(asked, print_line, refuse_newer_store)
    return 0


def run_uninstall(arguments: argparse.Namespace) -> int:
    """`agent uninstall`."""
    from agent.cli.steps import print_line
    from agent.node import installing

    if installing.uninstall(arguments.state, print_line):
        print("the agent has ended; what it raised runs on, and `agent up` takes over again")
    else:
        print(f"no unit and no link lead to {arguments.state}, so there was nothing to take away")
    return 0
