"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from agent.errors import Refused

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


def default_state() -> Path:
    """The state folder when no option names one."""
    return _folder(os.environ.get("AGENT_STATE") or "/var/lib/mesh-agent")


def state_option(parser: argparse.ArgumentParser, default: object = argparse.SUPPRESS) -> None:
    """Add `--state`; only the whole command line has a default, so that it may stand before a command too."""
    parser.add_argument(
        "--state",
        type=_folder,
        default=default,
        metavar="DIR",
        help="the agent's folder (AGENT_STATE, or /var/lib/mesh-agent)",
    )


def output_option(parser: argparse.ArgumentParser) -> None:
    """Add `-o json`."""
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", metavar="FORMAT", help="text or json"
    )


def read_input(what: str, file: str, *, at_most: int = -1) -> bytes:
    """The content of a file that was named, or of standard input for `-`; its first bytes `at_most`. Refused when it
    can't be read.
    """
    from agent.host.failures import reason

    try:
        if file != "-":
            with Path(file).open("rb") as stream:
                return stream.read(at_most)
        if sys.stdin is None:
            raise Refused(f"{what} is to come from standard input, which is closed")
        return sys.stdin.buffer.read(at_most)
    except OSError as error:
        raise Refused(f"{what} {file} cannot be read: {reason(error)}") from error


def bundle_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides which bundle is raised, and as what."""
    parser.add_argument("--name", help="this node's name (the host name's first label); a token's name wins")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the bundle; remembered"
    )
    parser.add_argument(
        "--bundle", type=_folder, metavar="DIR", help="carry the bundle in this folder instead, from now on"
    )
    parser.add_argument(
        "--prune", action="store_true", help="take away what a newer bundle no longer carries (never secrets or data)"
    )


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("names no folder")
    try:
        return Path(text).resolve()
    except OSError as error:  # where this was started is gone, or a link leads to itself
        raise Refused(f"the folder {text} can't be found: {error.strerror}; give its absolute path") from error


def setting(text: str) -> tuple[str, str]:
    """NAME=VALUE, as `--set` takes it."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Refused(f"--set {text}: write it as NAME=VALUE")
    return name, value


def seconds(text: str) -> float:
    """A length of time in seconds, from one to a day."""
    with suppress(ValueError):
        if 1 <= float(text) <= 86400:
            return float(text)
    raise argparse.ArgumentTypeError("must be from 1 to 86400 seconds")


def number(least: int, most: int) -> Callable[[str], int]:
    """What reads a whole number from `least` to `most`."""

    def read(text: str) -> int:
        with suppress(ValueError):
            if least <= int(text) <= most:
                return int(text)
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")

    return read
