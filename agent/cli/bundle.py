"""`agent bundle show | verify | pack`: what this file carries, and a file that carries something else."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent.cli import options
from agent.errors import Refused


def add(commands: options.Commands) -> None:
    """Add the command."""
    group = commands.add_parser("bundle", help="the bundle that this file carries")
    verbs = group.add_subparsers(metavar="COMMAND", required=True)
    for name, run, words in (
        ("show", show, "list what the bundle holds"),
        ("verify", verify, "read every byte of it and compare digests"),
    ):
        parser = verbs.add_parser(name, help=words)
        parser.add_argument("--file", type=Path, metavar="FILE", help="another agent file than the running one")
        if run is show:
            options.output_option(parser)
        parser.set_defaults(run=run)
    packing = verbs.add_parser("pack", help="make a file like this one that carries another bundle")
    packing.add_argument("folder", type=Path, metavar="DIR", help="the bundle: bundle.toml and blobs/")
    packing.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file to make")
    packing.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME",
        help="carry this image, which podman or docker here has",
    )
    packing.add_argument("--engine", choices=("podman", "docker"), help="take images from this one alone")
    packing.set_defaults(run=pack)


def carrying_file(asked: Path | None = None) -> Path:
    """The agent file whose bundle is meant: the one asked for, or the running one."""
    from agent.build import running_file

    file = asked or running_file()
    if file is None:
        raise Refused("this runs from a source tree and carries no bundle; build the one file with ./build.sh")
    return file


def show(arguments: argparse.Namespace) -> int:
    """`agent bundle show`."""
    from agent.bundle import image_of, open_bundle
    from agent.cli.output import print_json, print_table
    from agent.fields import Fields
    from agent.resources import read_document

    bundle = open_bundle(carrying_file(arguments.file))
    document = read_document(Fields(bundle.document))
    items = [Fields(item, f"resource[{at}]") for at, item in enumerate(document.items)]
    if arguments.output == "json":
        print_json(
            {
                "name": bundle.name,
                "digest": bundle.digest,
                "params": dict(document.params),
                "resources": [item.values() for item in items],
                "blobs": [
                    {"name": blob.name, "size": blob.size, "sha256": blob.sha256, "image": image_of(blob.name)}
                    for blob in bundle.blobs.values()
                ],
            }
        )
        return 0
    print(f"bundle {bundle.name}, {len(items)} resources, {len(bundle.blobs)} blobs, digest {bundle.digest}")
    for name, value in document.params.items():
        print(f"  param {name} = {value}")
    rows = [(f"{item.text('kind')}:{item.text('name')}", item.text("role", "")) for item in items]
    print_table(("RESOURCE", "ONLY ON"), rows)
    blobs = [(image_of(blob.name), blob) for blob in bundle.blobs.values()]
    for title, carried in (
        ("BLOB", [(blob.name, blob) for image, blob in blobs if image is None]),
        ("IMAGE", [(image, blob) for image, blob in blobs if image is not None]),
    ):
        if carried:
            print_table((title, "BYTES", "SHA-256"), [(name, str(blob.size), blob.sha256) for name, blob in carried])
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """`agent bundle verify`."""
    import agent.bundle
    from agent.node import folder, substrate

    bundle = agent.bundle.open_bundle(carrying_file(arguments.file))
    agent.bundle.verify(bundle)
    substrate.load(bundle, folder.DEFAULT, "node", {}, founder=True)
    print(f"bundle {bundle.name}: every byte is as its manifest says and every resource reads well")
    print(f"digest {bundle.digest}")
    return 0


def pack(arguments: argparse.Namespace) -> int:
    """`agent bundle pack`."""
    import agent.bundle
    from agent.kinds.engine import Engines
    from agent.node import carrying, folder, substrate
    from agent.resources import EngineName

    file, wanted = carrying_file(), EngineName(arguments.engine) if arguments.engine else None
    loaded = substrate.load(agent.bundle.open_bundle(arguments.folder), folder.DEFAULT, "node", {}, founder=True)
    images = carrying.image_sources(arguments.image, loaded, Engines(), wanted)
    packed = agent.bundle.pack(file, arguments.folder, arguments.output, images)
    print(f"{arguments.output} carries the bundle {packed.name} {packed.digest}")
    return 0
