"""`agent control backup` and `agent control restore`: the control plane, for the day its machine is lost."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent.cli import options
from agent.cli.control.command import verb


def add(verbs: options.Commands) -> None:
    """Add the commands."""
    backup = verb(verbs, "backup", run_backup, "write store, keys and the broker's certificate to one file")
    backup.add_argument("file", metavar="FILE", type=Path, help="the file; it holds secrets, and is made 0600")
    restore = verb(verbs, "restore", run_restore, "put a backup in its place, on a machine that is to be the founder")
    restore.add_argument("file", metavar="FILE", type=Path, help="what `control backup` wrote")


def run_backup(arguments: argparse.Namespace) -> int:
    """`control backup`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        control.backup(arguments.file)
    print(f"{arguments.file} holds the control plane; keep it where nobody else reads it")
    return 0


def run_restore(arguments: argparse.Namespace) -> int:
    """`control restore`."""
    from agent.control.backup import restore_backup

    node = restore_backup(arguments.state, arguments.file)
    print(
        f"the control plane is in its place: `agent up --name {node}` founds the mesh with it; then let each node join "
        "again with a token from `agent control token create NAME --replace`, which changes nothing of what it runs"
    )
    return 0
