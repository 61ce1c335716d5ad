"""What can be typed. Each command family adds its own commands; a mistake is one sentence, exit code 1.

A command loads its own family alone; help, and a word that is no command, load all of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from agent.cli import options
from agent.errors import Refused
from agent.fields import nearest, quoted

_FAMILIES = ("up", "plan", "status", "ports", "control", "bundle", "install", "reset")
_EPILOG = "Each command has its own help: agent COMMAND --help."


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is an error like every other, and which takes no option for another."""

    def __init__(self, **how: Any) -> None:  # noqa: ANN401 - what argparse passes on
        # The start-up reads --state too, and knows no abbreviations of it.
        super().__init__(**how, allow_abbrev=False)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, extras = super().parse_known_args(args, namespace)
        for extra in extras:
            if extra.startswith("-"):
                option = extra.partition("=")[0]
                self.error(f"there is no option {option}{nearest(option, self._option_string_actions)}")
            self.error(f"{quoted(extra)} is a word too many")
        return found, extras

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; see `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            hint = nearest(str(value), names) or f"; there are {', '.join(names)}"
            self.error(f"there is no {str(action.metavar or 'command').lower()} {quoted(str(value))}{hint}")


def build_parser(argv: Sequence[str]) -> Parser:
    """The command line, as far as it is needed to read `argv`."""
    parser = Parser(prog="agent", description="Raises what it carries and joins a mesh.", epilog=_EPILOG)
    parser.add_argument("--version", action=_Version, nargs=0, help="say what this file is")
    options.state_option(parser, options.default_state())
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for family in _families(argv):
        import_module(f"agent.cli.{family}").add(commands)
    return parser


def _families(argv: Sequence[str]) -> Sequence[str]:
    words = list(argv)
    while words and words[0].startswith("--state"):
        del words[: 2 if words[0] == "--state" else 1]
    return words[:1] if words and words[0] in _FAMILIES else _FAMILIES


class _Version(argparse.Action):
    def __call__(self, *_: object, **__: object) -> NoReturn:
        from agent.cli.version import version

        print(version())
        sys.exit(0)
