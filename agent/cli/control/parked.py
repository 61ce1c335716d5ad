"""`agent control parked …`: messages that the control plane could not understand."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from agent.cli import options
from agent.cli.control.command import noun, verb
from agent.errors import Refused

if TYPE_CHECKING:
    from agent.control.parking import Parked
    from agent.fields import JsonValue

_LONGEST_IN_A_LINE = 100


def add(verbs: options.Commands) -> None:
    """Add the noun's commands."""
    parked = noun(verbs, "parked", "messages that could not be understood")
    listing = verb(parked, "list", run_list, "every parked message, and why")
    options.output_option(listing)
    show = verb(parked, "show", run_show, "all of one parked message")
    show.add_argument("id", metavar="ID", help="the message, as `parked list` calls it")
    options.output_option(show)
    for name, run, about in (
        ("drop", run_drop, "forget parked messages"),
        ("retry", run_retry, "give parked messages to the control plane once more"),
    ):
        one = verb(parked, name, run, about)
        one.add_argument("ids", metavar="ID", nargs="*", help="the messages, as `parked list` calls them")
        one.add_argument("--all", action="store_true", help="all that are parked")


def run_list(arguments: argparse.Namespace) -> int:
    """`control parked list`."""
    from agent.cli.output import moment, print_json, print_table
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        parked = control.parked()
    if arguments.output == "json":
        print_json({"parked": [_fields(one) for one in parked]})
        return 0
    print_table(
        ("ID", "AT", "FROM", "AS", "WHY"),
        [
            (
                one.id,
                "-" if one.at is None else moment(one.at),
                one.sender or "-",
                one.routing_key or "-",
                one.reason if len(one.reason) <= _LONGEST_IN_A_LINE else f"{one.reason[:_LONGEST_IN_A_LINE]}…",
            )
            for one in parked
        ],
    )
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """`control parked show`."""
    from agent.cli.output import moment, print_json
    from agent.control.parking import in_text
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        one = control.parked_message(arguments.id)
    if arguments.output == "json":
        print_json({**_fields(one), "body": in_text(one.body)})
        return 0
    print(f"parked     {one.id}{'' if one.at is None else f', {moment(one.at)}'}")
    print(f"why        {one.reason}")
    for name, value in one.original.items():
        print(f"came with  {name}: {value}")
    print(f"body       {in_text(one.body)}")
    if one.cut:
        print("           only its beginning was kept")
    return 0


def run_drop(arguments: argparse.Namespace) -> int:
    """`control parked drop`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        count = control.drop_parked(_ids(arguments))
    print(f"{_counted(count)} dropped")
    return 0


def run_retry(arguments: argparse.Namespace) -> int:
    """`control parked retry`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        count = control.retry_parked(_ids(arguments))
    print(f"{_counted(count)} given to the control plane once more; what it still can't understand is parked again")
    return 0


def _ids(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    """The messages that are meant; None for all."""
    if bool(arguments.ids) is arguments.all:
        raise Refused("Say which parked messages are meant, or --all; `agent control parked list` names them.")
    return None if arguments.all else tuple(arguments.ids)


def _counted(count: int) -> str:
    return "1 parked message" if count == 1 else f"{count} parked messages"


def _fields(one: Parked) -> dict[str, JsonValue]:
    from agent.cli.output import moment

    return {
        "id": one.id,
        "why": one.reason,
        "at": None if one.at is None else moment(one.at),
        "came_with": dict(one.original),
        "bytes": len(one.body),
        "cut": one.cut,
    }
