"""`agent control node …`: what is known of the nodes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.cli import options
from agent.cli.control.command import noun, verb

if TYPE_CHECKING:
    from agent.control.views import Mesh, NodeDetail, NodeRow
    from agent.fields import JsonValue

_WATCH_SECONDS = 1.0


def add(verbs: options.Commands) -> None:
    """Add the noun's commands."""
    nodes = noun(verbs, "node", "what is known of the nodes")
    listing = verb(nodes, "list", run_list, "every node: here, out of touch, never spoken")
    options.output_option(listing)
    show = verb(nodes, "show", run_show, "all about one node")
    show.add_argument("node", metavar="NAME", help="the node")
    options.output_option(show)
    listing.add_argument("--watch", action="store_true", help="print it again whenever something has changed")
    remove = verb(nodes, "remove", run_remove, "shut a node out and forget it, there or not")
    remove.add_argument("node", metavar="NAME", help="the node")


def run_list(arguments: argparse.Namespace) -> int:
    """`control node list`; with --watch again whenever something of it has changed, until it is interrupted."""
    import time

    from agent.cli.output import finish
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        mesh = control.mesh()
        _print_mesh(mesh, arguments.output)
        while arguments.watch:
            finish()
            time.sleep(_WATCH_SECONDS)
            before, mesh = mesh, control.mesh()
            if _told(mesh) != _told(before):
                print()
                _print_mesh(mesh, arguments.output)
    return 0


def _told(mesh: Mesh) -> tuple[object, ...]:
    """What of a list makes it worth printing again: all but the times that go by."""
    rows = [replace(node, silent=None, last_seen=None, clock_offset=None) for node in mesh.nodes]
    return (rows, mesh.parked, mesh.serving)


def _print_mesh(mesh: Mesh, output: str) -> None:
    from agent.cli.output import print_json, print_table

    if output == "json":
        print_json({"nodes": [_row(node) for node in mesh.nodes], "parked": mesh.parked, "serving": mesh.serving})
        return
    print_table(
        ("NODE", "STATE", "HEARD", "WANTED", "APPLIED", "CARRIED PORTS", "ASSIGNED", "FAILED", "AGENT", "REFUSES"),
        [
            (
                node.name,
                _presence(node),
                _heard(node),
                str(node.wanted or "-"),
                "-" if node.applied is None else str(node.applied),
                str(node.carried),
                str(len(node.assigned)),
                str(node.failures),
                node.version or "-",
                node.refusal or "-",
            )
            for node in mesh.nodes
        ],
    )
    for node in mesh.nodes:
        if node.clock_offset is not None:
            print(f"the clock of {node.name} is {_clock(node.clock_offset)}")
    print(f"{mesh.parked} messages parked" if mesh.parked != 1 else "1 message parked")
    if not mesh.serving:
        print("the control plane is not running, so nobody is heard: see `agent status`", file=sys.stderr)


def run_show(arguments: argparse.Namespace) -> int:
    """`control node show`."""
    from agent.cli.output import print_json
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        detail = control.node(arguments.node)
    if arguments.output == "json":
        print_json(_detail(detail))
    else:
        _print_detail(detail)
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    """`control node remove`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        control.remove_node(arguments.node)
    print(f"{arguments.node} is forgotten; what it runs goes on there until `agent reset`")
    return 0


def _presence(node: NodeRow) -> str:
    from agent.cli.output import duration
    from agent.control.views import Presence

    if node.presence is Presence.OUT_OF_TOUCH and node.silent is not None:
        return f"{node.presence.value} {duration(node.silent)}"
    return node.presence.value


def _heard(node: NodeRow) -> str:
    from agent.cli.output import duration

    return "-" if node.silent is None else f"{duration(node.silent)} ago"


def _clock(offset: float) -> str:
    from agent.cli.output import duration

    return f"{duration(abs(offset))} {'ahead' if offset > 0 else 'behind'}"


def _row(node: NodeRow) -> dict[str, JsonValue]:
    from agent.cli.output import moment

    return {
        "name": node.name,
        "state": node.presence.value,
        "last_seen": None if node.last_seen is None else moment(node.last_seen),
        "wanted": node.wanted,
        "applied": node.applied,
        "carried_ports": node.carried,
        "assigned_ports": list(node.assigned),
        "version": node.version or None,
        "failed": node.failures,
        "refuses": node.refusal or None,
        "clock_offset": node.clock_offset,
    }


def _detail(detail: NodeDetail) -> dict[str, JsonValue]:
    from agent.cli.output import moment

    refusal = detail.refusal
    return {
        **_row(detail.row),
        "public_key": detail.public_key.hex(),
        "enrolled_at": moment(detail.enrolled),
        "profile": dict(detail.profile),
        "holdings": list(detail.holdings),
        "carried_ports": list(detail.carried),
        "failed": dict(detail.failures),
        "last_refusal": {"why": refusal.why, "serial": refusal.serial, "at": moment(refusal.at)} if refusal else None,
    }


def _print_detail(detail: NodeDetail) -> None:
    from agent.cli.output import moment

    row = detail.row
    print(f"node       {row.name}, {_presence(row)}, enrolled {moment(detail.enrolled)}")
    print(f"agent      {row.version or 'of unknown version'}")
    if row.clock_offset is not None:
        print(f"clock      {_clock(row.clock_offset)}")
    print(f"serial     wanted {row.wanted or '-'}, applied {'-' if row.applied is None else row.applied}")
    print(f"carries    {', '.join(map(str, detail.carried)) or 'no ports'}")
    print(f"assigned   {', '.join(map(str, row.assigned)) or 'no ports'}")
    for name, value in detail.profile.items():
        print(f"profile    {name}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    for id in detail.holdings:
        print(f"holds      {id}")
    for id, why in detail.failures.items():
        print(f"failed     {id}: {why}")
    if detail.refusal:
        serial = "of unknown serial" if detail.refusal.serial is None else str(detail.refusal.serial)
        print(f"refused    declaration {serial} at {moment(detail.refusal.at)}: {detail.refusal.why}")
