"""`agent control secret …`: values that the mesh keeps for its nodes. None of these commands shows one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from agent.cli import options
from agent.cli.control.command import noun, verb
from agent.cli.control.outcome import follow_all, waiting_options
from agent.errors import Refused

if TYPE_CHECKING:
    from agent.control.mesh_secrets import Kept
    from agent.control.plane import Control


def add(verbs: options.Commands) -> None:
    """Add the noun's commands."""
    secrets = noun(verbs, "secret", "values that the mesh keeps for its nodes: ${secret.NAME}")
    setting = verb(secrets, "set", run_set, "give a secret its value, which reaches all who use it")
    setting.description = (
        "The value comes from standard input, from a file or, at a terminal, from a question that doesn't show it. It "
        "is UTF-8 text of at most 64 KiB. The end of its line is no part of a value of one line; one of several lines "
        "is kept as it is."
    )
    setting.add_argument("name", metavar="NAME", help="the secret")
    setting.add_argument("value", nargs="*", default=[], help=argparse.SUPPRESS)
    setting.add_argument("--file", default="-", metavar="FILE", help="the value is in this file; - is standard input")
    waiting_options(setting)
    make = verb(secrets, "make", run_make, "have the mesh make a secret's value: random bytes in hexadecimal")
    make.add_argument("name", metavar="NAME", help="the secret")
    make.add_argument(
        "--bytes", type=options.number(16, 1024), default=32, metavar="N", help="how many bytes, 16 to 1024 (32)"
    )
    make.add_argument("--anew", action="store_true", help="in the place of the value that it has")
    waiting_options(make)
    options.output_option(verb(secrets, "list", run_list, "every secret, since when it has its value, who uses it"))
    remove = verb(secrets, "remove", run_remove, "forget a secret that nothing uses")
    remove.add_argument("name", metavar="NAME", help="the secret")


def run_set(arguments: argparse.Namespace) -> int:
    """`control secret set`: the exit codes of `control declare`, of the nodes that use it."""
    from agent.control.plane import open_control

    if arguments.value:
        raise Refused(
            "a secret's value is never an argument, which every user of the machine can read: give it by standard "
            "input or --file, and choose another one if this was it"
        )
    with open_control(arguments.state) as control:
        data = _read(arguments.name, arguments.file)
        return _tell(control, control.secrets.set(arguments.name, data), arguments)


def run_make(arguments: argparse.Namespace) -> int:
    """`control secret make`: as `set`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        return _tell(control, control.secrets.make(arguments.name, arguments.bytes, anew=arguments.anew), arguments)


def run_list(arguments: argparse.Namespace) -> int:
    """`control secret list`."""
    from agent.cli.output import moment, print_json, print_table
    from agent.control.mesh_secrets import places
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        rows = control.secrets.rows()
    if arguments.output == "json":
        print_json(
            [
                {
                    "name": row.name,
                    "version": row.version,
                    "since": moment(row.since),
                    "used_by": [
                        {"node": node, "name": user or None} for node, users in row.users.items() for user in users
                    ],
                }
                for row in rows
            ]
        )
        return 0
    print_table(
        ("SECRET", "VERSION", "SINCE", "USED BY"),
        [(row.name, str(row.version), moment(row.since), ", ".join(places(row.users)) or "-") for row in rows],
    )
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    """`control secret remove`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        control.secrets.remove(arguments.name)
    print(f"the secret {arguments.name} is removed")
    return 0


def _tell(control: Control, kept: Kept, arguments: argparse.Namespace) -> int:
    if kept.is_new:
        print(f"the secret {arguments.name} has a new value, which is its version {kept.version}", flush=True)
    else:
        print(f"the secret {arguments.name} had this value already, as its version {kept.version}", flush=True)
    why = f"which uses the secret {arguments.name},"
    return follow_all(control, [(one, why) for one in kept.declared], arguments)


def _read(name: str, file: str) -> bytes:
    """The value without the end of its line, when it is of one line."""
    from agent.resources import LARGEST_SECRET

    if file == "-" and sys.stdin is not None and sys.stdin.isatty():
        return _ask(name)
    # One more than a value may have, and the end of a line.
    data = options.read_input("the value", file, at_most=LARGEST_SECRET + 3)
    line, end, more = data.partition(b"\n")
    return line.removesuffix(b"\r") if end and not more else data


def _ask(name: str) -> bytes:
    from getpass import getpass

    try:
        value = getpass(f"The value of {name} (not shown): ")
        if getpass("The same again: ") != value:
            raise Refused("the two are not the same, so nothing was changed")
    except EOFError:
        raise Refused("no value was given, so nothing was changed") from None
    return value.encode("utf-8", "surrogateescape")
