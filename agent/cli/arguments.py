"""What can be typed. Each command family adds its own commands; a mistake is one sentence, exit code 1."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from agent.cli import bundle, control, ports, reset, status, up
from agent.errors import Refused
from agent.fields import nearest

_EPILOG = "Each command has its own help: agent COMMAND --help."


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is an error like every other."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; see `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            hint = nearest(str(value), names) or f"; there are {', '.join(names)}"
            self.error(f"there is no {action.metavar or 'command'} {value!r}{hint}")


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(prog="agent", description="Raises what it carries and joins a mesh.", epilog=_EPILOG)
    parser.add_argument("--version", action=_Version, nargs=0, help="say what this file is")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for family in (up, status, ports, control, bundle, reset):
        family.add(commands)
    return parser


class _Version(argparse.Action):
    def __call__(self, *_: object, **__: object) -> NoReturn:
        from agent.cli.bundle import version

        print(version())
        sys.exit(0)
