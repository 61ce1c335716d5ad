"""`agent control …`: the mesh as the founder sees it. On any other machine each says where to run it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent.cli import options
from agent.errors import Refused

if TYPE_CHECKING:
    from agent.control.declaring import Outcome
    from agent.control.views import NodeDetail, NodeRow
    from agent.fields import JsonValue
    from agent.resources import Document

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add(commands: options.Commands) -> None:
    """Add the family's commands."""
    group = commands.add_parser("control", help="the mesh: nodes, declarations, tokens (on its founder)")
    options.state_option(group)
    verbs = group.add_subparsers(metavar="COMMAND", required=True)

    serve = verbs.add_parser("serve", help="run the control plane (the substrate starts it)")
    serve.add_argument(
        "--alive-interval", type=options.seconds, default=60.0, metavar="SECONDS", help="of the nodes (60)"
    )
    serve.add_argument(
        "--missed",
        type=options.count,
        default=3,
        metavar="N",
        help="how many alives a node may miss before it is out of touch (3)",
    )
    _finish(serve, run_serve)

    declare = verbs.add_parser("declare", help="say what a node should hold, and wait for its report")
    declare.add_argument("node", metavar="NAME", help="the node")
    declare.add_argument("file", metavar="FILE", help="a TOML or JSON list of resources; - reads standard input")
    declare.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the list")
    declare.add_argument("--retire", action="store_true", help="an empty list is meant: remove all that is assigned")
    declare.add_argument("--detach", action="store_true", help="don't wait for the report")
    declare.add_argument(
        "--timeout", type=options.seconds, default=600.0, metavar="SECONDS", help="how long to wait (600)"
    )
    _finish(declare, run_declare)

    nodes = verbs.add_parser("node", help="what is known of the nodes").add_subparsers(metavar="COMMAND", required=True)
    listing = nodes.add_parser("list", help="every node: here, out of touch, never spoken")
    options.output_option(listing)
    _finish(listing, run_node_list)
    show = nodes.add_parser("show", help="all about one node")
    show.add_argument("node", metavar="NAME", help="the node")
    options.output_option(show)
    _finish(show, run_node_show)

    tokens = verbs.add_parser("token", help="the right to join").add_subparsers(metavar="COMMAND", required=True)
    create = tokens.add_parser("create", help="make a token for one machine and print it")
    create.add_argument("node", metavar="NAME", help="the name that the machine will have")
    create.add_argument(
        "--ttl", type=_lifetime, default=3600.0, metavar="TIME", help="how long it is good: 90s, 15m, 1h, 2d (1h)"
    )
    _finish(create, run_token_create)


def run_serve(arguments: argparse.Namespace) -> int:
    """`control serve`."""
    import logging
    import threading

    from agent.control.service import serve, stop_on_signals

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    stop = threading.Event()
    stop_on_signals(stop)
    serve(arguments.state, stop=stop, alive_interval=arguments.alive_interval, missed=arguments.missed)
    return 0


def run_declare(arguments: argparse.Namespace) -> int:
    """`control declare`: 0 applied, 1 refused by the node, 2 something of it failed or nothing was heard."""
    from agent.control.plane import open_control

    document = _read_document(arguments.file)
    with open_control(arguments.state) as control:
        declared = control.declare(
            arguments.node, document, dict(map(options.setting, arguments.set)), retire=arguments.retire
        )
        print(f"declaration {declared.serial} for {declared.node} is signed and on its way", flush=True)
        if arguments.detach:
            return 0
        if not declared.has_spoken:
            print(f"{declared.node} has never spoken: it will be applied when that node first does", flush=True)
            return 0
        return _print_outcome(declared.node, control.wait(declared, arguments.timeout))


def run_node_list(arguments: argparse.Namespace) -> int:
    """`control node list`."""
    from agent.cli.output import print_json, print_table
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        mesh = control.mesh()
    if arguments.output == "json":
        print_json({"nodes": [_row(node) for node in mesh.nodes], "parked": mesh.parked, "serving": mesh.serving})
        return 0
    print_table(
        ("NODE", "STATE", "WANTED", "APPLIED", "CARRIED PORTS", "FAILED", "REFUSES"),
        [
            (
                node.name,
                _presence(node),
                str(node.wanted or "-"),
                "-" if node.applied is None else str(node.applied),
                str(node.carried),
                str(node.failures),
                node.refusal or "-",
            )
            for node in mesh.nodes
        ],
    )
    print(f"{mesh.parked} messages parked" if mesh.parked != 1 else "1 message parked")
    if not mesh.serving:
        print("the control plane is not running, so nobody is heard: see `agent status`", file=sys.stderr)
    return 0


def run_node_show(arguments: argparse.Namespace) -> int:
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


def run_token_create(arguments: argparse.Namespace) -> int:
    """`control token create`: the token alone on standard output, so that it can be piped."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        print(control.create_token(arguments.node, arguments.ttl).encode())
    return 0


def _finish(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    options.state_option(parser)
    parser.set_defaults(run=run)


def _read_document(file: str) -> Document:
    """The list in a TOML or JSON file; a bare JSON list is one too."""
    from agent.fields import Fields, parse_json
    from agent.resources import read_document

    data = options.read_input("the list", file)
    # TOML begins with neither; its [table] and [[resource]] have a name inside.
    if re.match(rb"\s*(\{|\[\s*[\]{])", data):
        value: object = parse_json(data)
        fields = Fields({"resource": value} if isinstance(value, list) else value)
    else:
        fields = Fields(_parse_toml(data, file))
    document = read_document(fields)
    fields.finish()
    return document


def _parse_toml(data: bytes, file: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are both ValueErrors
        raise Refused(f"{file} is neither TOML nor JSON: {error}") from error
    return document


def _print_outcome(node: str, outcome: Outcome) -> int:
    from agent.control.declaring import Applied, RefusedBy

    if isinstance(outcome, Applied):
        if not outcome.failed:
            print(f"{node} has applied it")
            return 0
        for id, why in outcome.failed.items():
            print(f"{node}: {id} failed: {why}")
        return 2
    if isinstance(outcome, RefusedBy):
        print(f"{node} refused it, and changed nothing: {outcome.why}")
        return 1
    print(f"nothing was heard of {node} yet; it stays declared, and `agent control node show {node}` tells")
    return 2


def _presence(node: NodeRow) -> str:
    from agent.cli.output import duration
    from agent.control.views import Presence

    if node.presence is Presence.OUT_OF_TOUCH and node.silent is not None:
        return f"{node.presence.value} {duration(node.silent)}"
    return node.presence.value


def _row(node: NodeRow) -> dict[str, JsonValue]:
    from agent.cli.output import moment

    return {
        "name": node.name,
        "state": node.presence.value,
        "last_seen": None if node.last_seen is None else moment(node.last_seen),
        "wanted": node.wanted,
        "applied": node.applied,
        "carried_ports": node.carried,
        "failed": node.failures,
        "refuses": node.refusal or None,
    }


def _detail(detail: NodeDetail) -> dict[str, JsonValue]:
    from agent.cli.output import moment

    refusal = detail.refusal
    return {
        **_row(detail.row),
        "public_key": detail.public_key.hex(),
        "enrolled_at": moment(detail.enrolled),
        "version": detail.version or None,
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
    print(f"agent      {detail.version or 'of unknown version'}")
    print(f"serial     wanted {row.wanted or '-'}, applied {'-' if row.applied is None else row.applied}")
    print(f"carries    {', '.join(map(str, detail.carried)) or 'no ports'}")
    for name, value in detail.profile.items():
        print(f"profile    {name}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    for id in detail.holdings:
        print(f"holds      {id}")
    for id, why in detail.failures.items():
        print(f"failed     {id}: {why}")
    if detail.refusal:
        serial = "of unknown serial" if detail.refusal.serial is None else str(detail.refusal.serial)
        print(f"refused    declaration {serial} at {moment(detail.refusal.at)}: {detail.refusal.why}")


def _lifetime(text: str) -> float:
    unit = text[-1:].lower()
    number = text[:-1] if unit in _UNITS else text
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no length of time; write it as in 90s, 15m, 1h or 2d")
    return float(number) * _UNITS.get(unit, 1)
