"""`agent plan`: what `up` would do here, and why, without doing it."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.cli import options

if TYPE_CHECKING:
    from agent.node.preview import Preview

CHANGES = 2


def add(commands: options.Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("plan", help="what `up` would create, change, keep or remove, and why")
    options.state_option(parser)
    options.output_option(parser)
    options.bundle_options(parser)
    parser.add_argument("--exit-code", action="store_true", help="exit with 2 when anything would change")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`agent plan`."""
    from agent.bundle import open_bundle
    from agent.cli.bundle import carrying_file
    from agent.cli.output import print_json, print_plan
    from agent.node.plans import Asked
    from agent.node.preview import preview

    planned = preview(
        Asked(
            state=arguments.state,
            bundle=open_bundle(arguments.bundle or carrying_file()),
            running_file=None,
            name=arguments.name,
            settings=dict(map(options.setting, arguments.set)),
            prune=arguments.prune,
        )
    )
    if arguments.output == "json":
        print_json(
            {
                "resources": [
                    {"change": change, "id": id, "reason": reason or None, "difference": difference or None}
                    for change, id, reason, difference in _rows(planned)
                ],
                "warnings": list(planned.warnings),
            }
        )
    else:
        print_plan(_rows(planned), planned.warnings)
    return CHANGES if arguments.exit_code and planned.changes else 0


def print_preview(planned: Preview) -> None:
    """Print what an `up` is about to do, which nobody need read."""
    from agent.cli.output import print_plan

    with suppress(OSError):
        print_plan(_rows(planned), planned.warnings)
        print(end="", flush=True)  # all of it is said before anything is done


def _rows(planned: Preview) -> list[tuple[str, str, str, str]]:
    return [(line.change.value, line.id, line.reason, line.difference) for line in planned.lines]
