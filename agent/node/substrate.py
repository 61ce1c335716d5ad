"""What a node raises from the bundle it carries, before any mesh exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent import template
from agent.bundle import Blob, Bundle
from agent.errors import Refused
from agent.fields import Fields, dns_label, quoted
from agent.host import machine
from agent.resources import (
    Context,
    FromBlob,
    Port,
    Resource,
    check_state_folder,
    check_within,
    claims,
    document_values,
    parse_list,
    read_document,
)
from agent.resources import File as FileSpec
from agent.resources.grammar import absolute_path

_ROOM_TO_SPARE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Mesh:
    """What a bundle that raises a control plane says of it: where that leaves the founder's token."""

    token_file: Path


@dataclass(frozen=True, slots=True)
class Substrate:
    """The carried list as it is for this node. `mesh` is None for a bundle without one."""

    bundle: Bundle
    resources: tuple[Resource, ...]
    mesh: Mesh | None

    def read_blob(self, name: str) -> Iterator[bytes]:
        return self.bundle.read_blob(name)


class _BundleBlobs:
    """A bundle's blobs, as a list asks for them."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def facts(self, name: str) -> Blob | None:
        return self._bundle.blobs.get(name)

    def read(self, name: str) -> bytes:
        return b"".join(self._bundle.read_blob(name))


def load(bundle: Bundle, state: Path, node: str, settings: Mapping[str, str], *, founder: bool) -> Substrate:
    """Read the bundle's list for this node, and check all of it that can be checked without looking at the machine.

    Refused when anything in it is not as it must be.
    """
    fields = Fields(bundle.document)
    fields.text("name")
    mesh = fields.table("mesh")
    document = read_document(fields)
    fields.finish()
    context = Context(state, document_values(document, settings, node), _BundleBlobs(bundle))
    resources = parse_list(document.items, context)
    check_within(resources)
    check_state_folder(resources, state, allowed=(state / "control" / "control.toml",))
    if not founder:
        resources = tuple(resource for resource in resources if not resource.founder_only)
    return Substrate(bundle, resources, _mesh(mesh, state) if mesh else None)


def check_room(substrate: Substrate, state: Path) -> None:
    """Refused when the disk has no room for what the bundle's blobs will become."""
    wanted = sum(
        one.spec.content.size
        for one in substrate.resources
        if isinstance(one.spec, FileSpec) and isinstance(one.spec.content, FromBlob)
    )
    place = next(folder for folder in (state, *state.parents) if folder.exists())
    free = machine.free_bytes(place)
    if free < wanted + _ROOM_TO_SPARE:
        raise Refused(
            f"{place} has {free >> 20} MiB free and this bundle needs {(wanted + _ROOM_TO_SPARE) >> 20} MiB; "
            "make room, or choose another place with --state"
        )


def port_warnings(resources: Sequence[Resource], given_out: range) -> Iterator[str]:
    """A sentence for each declared port that the kernel may have given to another program when it is needed."""
    for resource in resources:
        for port in claims(resource).ports:
            if port.number in given_out:
                yield _port_warning(resource, port, given_out)


def _port_warning(resource: Resource, port: Port, given_out: range) -> str:
    return (
        f"{resource.id} declares port {port.number}, which lies among those that the kernel gives to whoever connects "
        f"somewhere ({given_out.start} to {given_out.stop - 1}): it may be taken when it is needed. Choose another, or "
        f"keep it back with sysctl net.ipv4.ip_local_reserved_ports={port.number}"
    )


def node_name(asked: str | None) -> str:
    """The name that was asked for or else the host name's first label; Refused when it is no DNS label."""
    if asked is not None:
        return dns_label(asked, "the node name")
    label = machine.host_label()
    try:
        return dns_label(label, "this machine's host name")
    except Refused as error:
        raise Refused(f"{error}; or choose a name with --name") from error


def _mesh(fields: Fields, state: Path) -> Mesh:
    where = fields.path("token_file")
    text = template.parse(fields.text("token_file"), where).fill({"state": str(state)}).text(where)
    fields.finish()
    path = absolute_path(text, where)
    if state not in path.parents:
        raise Refused(f"{where}: {quoted(text)} does not lie in the state folder {state}")
    return Mesh(path)
