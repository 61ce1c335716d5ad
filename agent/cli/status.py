"""`agent status`: every resource here, how it stands, the link, and the accepted serial."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from agent.cli import options

if TYPE_CHECKING:
    from agent.node.condition import Condition, Line


def add(commands: options.Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("status", help="every resource here, the link, the serial")
    options.state_option(parser)
    options.output_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`agent status`."""
    import time

    from agent.node.condition import look

    condition = look(arguments.state)
    if arguments.output == "json":
        _print_json(condition)
    else:
        _print_text(condition, time.time())
    return 0


def _print_text(condition: Condition, now: float) -> None:
    from agent.cli.output import ago, moment, print_table

    agent = f"running (process {condition.agent})" if condition.agent else "not running"
    print(f"node     {condition.name}, {condition.role}; the agent is {agent}")
    link = condition.link
    print(f"link     {link.state}" + (f" for {ago(link.since, now)}" if link.since else "") + _because(link.why))
    serial = f"{condition.serial}, accepted {moment(condition.accepted)}" if condition.serial else "none accepted yet"
    print(f"serial   {serial}")
    print()
    print_table(
        ("RESOURCE", "ORIGIN", "STATE", "PORTS", "SINCE"),
        [
            (
                line.id,
                line.origin,
                line.state + _because(line.why),
                ", ".join(line.ports) or "-",
                ago(line.since, now) if line.since else "-",
            )
            for line in condition.lines
        ],
    )


def _print_json(condition: Condition) -> None:
    from agent.cli.output import moment, print_json

    def shown(line: Line) -> dict[str, Any]:
        return {
            "id": line.id,
            "origin": line.origin,
            "state": line.state,
            "why": line.why or None,
            "found": line.found,
            "ports": list(line.ports),
            "since": moment(line.since) if line.since else None,
        }

    link = condition.link
    print_json(
        {
            "node": condition.name,
            "role": condition.role,
            "agent": condition.agent,
            "link": {
                "state": link.state,
                "since": moment(link.since) if link.since else None,
                "why": link.why or None,
            },
            "serial": condition.serial,
            "accepted_at": moment(condition.accepted) if condition.serial else None,
            "resources": [shown(line) for line in condition.lines],
        }
    )


def _because(why: str) -> str:
    return f": {why}" if why else ""
