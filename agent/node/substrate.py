"""What a node raises from the bundle it carries, before any mesh exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent import template
from agent.bundle import Blob, Bundle, archive_of
from agent.errors import Refused, Unavailable
from agent.fields import Fields, dns_label, quoted
from agent.host import machine
from agent.kinds import loaded
from agent.kinds.engine import Engines
from agent.kinds.kind import Machine
from agent.resources import (
    Context,
    FromBlob,
    Image,
    Package,
    Resource,
    Sealed,
    Secret,
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
    values = document_values(document, settings, node)
    context = Context(state, values, _BundleBlobs(bundle))
    items = [_with_archive(item, f"resource[{at}]", values, bundle) for at, item in enumerate(document.items)]
    resources = parse_list(items, context)
    for resource in resources:
        if isinstance(resource.spec, Secret) and isinstance(resource.spec.value, Sealed):
            raise Refused(
                f"{resource.id} is sealed, which only the mesh does, for one node alone; what a bundle carries is made "
                "where it is raised: leave `sealed` out"
            )
    check_within(resources)
    check_state_folder(resources, state, allowed=(state / "control" / "control.toml",))
    if not founder:
        resources = tuple(resource for resource in resources if not resource.founder_only)
    return Substrate(bundle, resources, _mesh(mesh, state) if mesh else None)


def check_room(substrate: Substrate, state: Path, engines: Engines | None = None) -> None:
    """Refused when a file system has no room for what the bundle's blobs will become there.

    The file itself is copied into the state folder, with all of its blobs; and each goes where its resource puts it.
    """
    needed: dict[int, tuple[Path, int]] = {}
    for folder, size in _becoming(substrate, state, engines or Engines()):
        place = next(one for one in (folder, *folder.parents) if one.exists())
        device = place.stat().st_dev
        first, before = needed.get(device, (place, 0))
        needed[device] = (first, before + size)
    for place, size in needed.values():
        free = machine.free_bytes(place)
        if free < size:
            elsewhere = ", or choose another place with --state" if place == state or place in state.parents else ""
            raise Refused(
                f"{place} has {free >> 20} MiB free and this bundle needs {size >> 20} MiB there; make room{elsewhere}"
            )


def _becoming(substrate: Substrate, state: Path, engines: Engines) -> Iterator[tuple[Path, int]]:
    """Folders, and how many bytes more there will be below each; what an earlier try has left there isn't counted."""
    place = substrate.bundle.place
    carried = sum(blob.size for blob in substrate.bundle.blobs.values())
    copied = place.is_file() and _has_size(state / "agent", place.stat().st_size)
    yield state, _ROOM_TO_SPARE + (0 if copied else carried)
    loading: dict[Path, int] = {}
    for spec in (resource.spec for resource in substrate.resources):
        if isinstance(spec, FileSpec) and isinstance(spec.content, FromBlob):
            if not _has_size(spec.path, spec.content.size):
                yield spec.path.parent, spec.content.size
        elif isinstance(spec, Package):
            yield state, sum(file.size for file in spec.files)
        elif isinstance(spec, Image) and spec.archive:
            at = Machine(state, b"", substrate.read_blob)
            with suppress(Unavailable):  # as its own check will say, unless an earlier package brings the engine
                engine = engines.choose(spec.engine, at)
                if loaded.is_loaded(at, spec.name, spec.archive.sha256):
                    continue
                yield engine.store(), spec.archive.size
                folder = engine.loading_folder()
                loading[folder] = max(loading.get(folder, 0), spec.archive.size)
    yield from loading.items()


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False


def port_warnings(resources: Sequence[Resource], given_out: range) -> Iterator[str]:
    """A sentence for each declared port that the kernel may have given to another program when it is needed."""
    for resource in resources:
        for number in sorted({port.number for port in claims(resource).ports}):
            if number in given_out:
                yield _port_warning(resource, number, given_out)


def _port_warning(resource: Resource, number: int, given_out: range) -> str:
    return (
        f"{resource.id} declares port {number}, which lies among those that the kernel gives to whoever connects "
        f"somewhere ({given_out.start} to {given_out.stop - 1}): it may be taken when it is needed. Choose another, or "
        f"keep it back with sysctl net.ipv4.ip_local_reserved_ports={number}"
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


def _with_archive(item: object, where: str, values: Mapping[str, str], bundle: Bundle) -> object:
    """The same item; one of an image that names no blob names the archive that was packed for it, if there is one."""
    if not isinstance(item, Mapping) or item.get("kind") != "image" or "blob" in item:
        return item
    name = item.get("name")
    if not isinstance(name, str):  # as will be said
        return item
    archive = archive_of(template.parse(name, f"{where}.name").fill(values).encode())
    return {**item, "blob": archive} if archive in bundle.blobs else item


def _mesh(fields: Fields, state: Path) -> Mesh:
    where = fields.path("token_file")
    text = template.parse(fields.text("token_file"), where).fill({"state": str(state)}).text(where)
    fields.finish()
    path = absolute_path(text, where)
    if state not in path.parents:
        raise Refused(f"{where}: {quoted(text)} does not lie in the state folder {state}")
    return Mesh(path)
