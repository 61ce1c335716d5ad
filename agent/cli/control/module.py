"""`agent control module …`: lists with parameters and open ports, to be assigned to nodes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from agent.cli import options
from agent.cli.control.command import noun, verb
from agent.cli.control.lists import read_fields
from agent.cli.control.outcome import print_outcome

if TYPE_CHECKING:
    from agent.control.arranging import ModuleRow, Moved
    from agent.fields import JsonValue


def add(verbs: options.Commands) -> None:
    """Add the noun's commands."""
    modules = noun(verbs, "module", "lists with parameters and open ports, to be assigned to nodes")
    adding = verb(modules, "add", run_add, "store a new version of a module; nobody is moved to it")
    adding.add_argument("file", metavar="FILE", help="the module, in TOML or JSON; - reads standard input")
    roll = verb(modules, "roll", run_roll, "move one node after the other to the newest version, until one fails")
    roll.add_argument("module", metavar="NAME", help="the module")
    roll.add_argument("--node", metavar="NODE", help="only this node")
    roll.add_argument(
        "--timeout", type=options.seconds, default=600.0, metavar="SECONDS", help="how long to wait for each (600)"
    )
    options.output_option(verb(modules, "list", run_list, "every module, its version, and where it is assigned"))
    show = verb(modules, "show", run_show, "a module's newest version")
    show.add_argument("module", metavar="NAME", help="the module")
    options.output_option(show)
    remove = verb(modules, "remove", run_remove, "forget a module that is assigned nowhere")
    remove.add_argument("module", metavar="NAME", help="the module")


def run_add(arguments: argparse.Namespace) -> int:
    """`control module add`."""
    from agent.control.modules import read_module
    from agent.control.plane import open_control

    module = read_module(read_fields("the module", arguments.file))
    with open_control(arguments.state) as control:
        version = control.arranging.add_module(module)
        row, _ = control.arranging.module(module.name)
        missing = control.arranging.missing_secrets(module)
    print(f"version {version.number} of the module {module.name} is stored")
    for secret in missing:
        print(f"warning: neither the module nor the mesh has a secret {secret}")
    if any(at != version.number for _, _, at in row.assigned):
        print(f"nobody is moved to it: `agent control module roll {module.name}` does that")
    return 0


def run_roll(arguments: argparse.Namespace) -> int:
    """`control module roll`: the exit codes of `control declare`, of the node at which it stopped."""
    from agent.control.plane import open_control

    code, moved = 0, 0
    with open_control(arguments.state) as control:
        for step in control.arranging.roll(arguments.module, arguments.node, arguments.timeout):
            code, moved = _print_step(step), moved + 1
        row, _ = control.arranging.module(arguments.module)
    left = sorted({node for node, _, at in row.assigned if at != row.version and arguments.node in (None, node)})
    if left:
        print(f"stopped; not moved are {', '.join(left)}")
    elif not moved:
        print(f"every node is at version {row.version} already")
    return code


def run_list(arguments: argparse.Namespace) -> int:
    """`control module list`."""
    from agent.cli.output import print_json, print_table
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        rows = control.arranging.modules()
    if arguments.output == "json":
        print_json([_row(row) for row in rows])
    else:
        print_table(("MODULE", "VERSION", "ASSIGNED"), [(row.name, str(row.version), _places(row)) for row in rows])
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """`control module show`."""
    from agent.cli.output import moment, print_json
    from agent.control.modules import encode_module
    from agent.control.plane import open_control
    from agent.fields import Fields

    with open_control(arguments.state) as control:
        row, module = control.arranging.module(arguments.module)
    if arguments.output == "json":
        print_json({**_row(row), "document": encode_module(module)})
        return 0
    print(f"module     {row.name}, version {row.version}, added {moment(row.added)}")
    print(f"assigned   {_places(row)}")
    for name, value in module.document.params.items():
        print(f"param      {name} = {value}")
    for name, port in module.ports.items():
        print(f"port       {name} = {port}")
    for item in module.document.items:
        fields = Fields(item)
        print(f"resource   {fields.text('kind')}:{fields.text('name')}")
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    """`control module remove`."""
    from agent.control.plane import open_control

    with open_control(arguments.state) as control:
        control.arranging.remove_module(arguments.module)
    print(f"the module {arguments.module} is removed")
    return 0


def _print_step(step: Moved) -> int:
    from agent.control.declaring import Waits

    declared = step.declared
    if isinstance(declared, Waits):
        print(f"{declared.node} has never reported: it is moved when it first does", flush=True)
        return 0
    for one in (declared, *declared.also):
        print(f"declaration {one.serial} for {one.node} is signed and on its way", flush=True)
    if step.outcome is None:
        print(f"{declared.node} has yet to speak: it is moved when it does", flush=True)
        return 0
    return print_outcome(declared.node, step.outcome)


def _places(row: ModuleRow) -> str:
    return ", ".join(f"{called} on {node} ({at})" for node, called, at in row.assigned) or "-"


def _row(row: ModuleRow) -> dict[str, JsonValue]:
    from agent.cli.output import moment

    return {
        "name": row.name,
        "version": row.version,
        "added": moment(row.added),
        "assigned": [{"node": node, "name": called, "version": at} for node, called, at in row.assigned],
    }
