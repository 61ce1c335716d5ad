"""`agent control …`: the mesh as the founder sees it. On any other machine each says where to run it."""

from __future__ import annotations

from agent.cli import options
from agent.cli.control import assign, backup, cert, declare, key, module, node, parked, plan, port, secret, serve, token

_NOUNS = (serve, declare, plan, module, assign, port, secret, node, token, parked, key, cert, backup)


def add(commands: options.Commands) -> None:
    """Add the family's commands."""
    group = commands.add_parser(
        "control", help="the mesh: nodes, modules, declarations, secrets, tokens (on its founder)"
    )
    options.state_option(group)
    verbs = group.add_subparsers(metavar="COMMAND", required=True)
    for noun in _NOUNS:
        noun.add(verbs)
