"""`agent control key …`: what declarations are signed with."""

from __future__ import annotations

import argparse

from agent.cli import options
from agent.cli.control.command import noun, verb


def add(verbs: options.Commands) -> None:
    """Add the noun's commands."""
    keys = noun(verbs, "key", "the keys that declarations are signed with")
    verb(keys, "rotate", run_rotate, "make the next key, and tell every node of it")
    listing = verb(keys, "list", run_list, "every key, and which nodes are signed for with it")
    options.output_option(listing)
    retire = verb(keys, "retire", run_retire, "have a key that no node needs any more count no longer")
    retire.add_argument(
        "number", metavar="NUMBER", type=options.number(1, 1000), help="the key, as `key list` calls it"
    )
    retire.add_argument(
        "--force", action="store_true", help="even if nodes still need it, which then have to join again"
    )


def run_rotate(arguments: argparse.Namespace) -> int:
    """`control key rotate`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        number = control.rotate_key()
    print(
        f"key {number} is made; each node is signed for with it once it has reported that it knows it: see "
        "`agent control key list`, and retire the one before when no node is left there"
    )
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """`control key list`."""
    from agent.cli.output import moment, print_json, print_table
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        keys = control.keys()
    if arguments.output == "json":
        print_json(
            {
                "keys": [
                    {
                        "number": key.number,
                        "public_key": key.public_key.hex(),
                        "made_at": moment(key.made),
                        "state": "retired" if key.retired else "newest" if key.is_newest else "counts",
                        "nodes": list(key.nodes),
                        "tokens": list(key.tokens),
                    }
                    for key in keys
                ]
            }
        )
        return 0
    print_table(
        ("KEY", "MADE", "STATE", "NODES", "TOKENS"),
        [
            (
                str(key.number),
                moment(key.made),
                "retired" if key.retired else "newest" if key.is_newest else "counts",
                ", ".join(key.nodes) or "-",
                ", ".join(key.tokens) or "-",
            )
            for key in keys
        ],
    )
    return 0


def run_retire(arguments: argparse.Namespace) -> int:
    """`control key retire`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        control.retire_key(arguments.number, force=arguments.force)
    print(f"key {arguments.number} counts no longer")
    return 0
