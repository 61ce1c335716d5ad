"""`agent control token …`: the right to join."""

from __future__ import annotations

import argparse

from agent.cli import options
from agent.cli.control.command import noun, verb

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add(verbs: options.Commands) -> None:
    """Add the noun's commands."""
    tokens = noun(verbs, "token", "the right to join")
    create = verb(tokens, "create", run_create, "make a token for one machine and print it")
    create.add_argument("node", metavar="NAME", help="the name that the machine will have")
    create.add_argument(
        "--ttl", type=_lifetime, default=3600.0, metavar="TIME", help="how long it is good: 90s, 15m, 1h, 2d (1h)"
    )
    create.add_argument(
        "--replace",
        action="store_true",
        help="the name has joined before: the same machine goes on, another one takes its place",
    )
    create.add_argument("--now", action="store_true", help="shut out the machine that is replaced at once")
    listing = verb(tokens, "list", run_list, "every token that is not done with")
    options.output_option(listing)
    revoke = verb(tokens, "revoke", run_revoke, "end the token for a machine that has not joined with it")
    revoke.add_argument("node", metavar="NAME", help="the name that the token is for")


def run_create(arguments: argparse.Namespace) -> int:
    """`control token create`: the token alone on standard output, so that it can be piped."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        token = control.create_token(arguments.node, arguments.ttl, replace=arguments.replace, at_once=arguments.now)
    print(token.encode())
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """`control token list`."""
    from agent.cli.output import moment, print_json, print_table
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        tokens = control.tokens()
    if arguments.output == "json":
        print_json(
            {
                "tokens": [
                    {
                        "node": token.node,
                        "state": token.standing.value,
                        "broker": token.broker,
                        "made_at": moment(token.made),
                        "expires_at": moment(token.expires),
                    }
                    for token in tokens
                ]
            }
        )
        return 0
    print_table(
        ("NODE", "STATE", "MADE", "EXPIRES"),
        [(token.node, token.standing.value, moment(token.made), moment(token.expires)) for token in tokens],
    )
    return 0


def run_revoke(arguments: argparse.Namespace) -> int:
    """`control token revoke`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        control.revoke_token(arguments.node)
    print(f"no token lets a machine join as {arguments.node} any more")
    return 0


def _lifetime(text: str) -> float:
    unit = text[-1:].lower()
    number = text[:-1] if unit in _UNITS else text
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no length of time; write it as in 90s, 15m, 1h or 2d")
    return float(number) * _UNITS.get(unit, 1)
