"""What a resource claims of a machine (ports, paths, names), and whether two can stand side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.errors import Refused
from agent.resources.model import SHARED_KINDS, Resource
from agent.resources.ports import Port
from agent.resources.specs import Certificate, Container, Directory, File, Image, Package, Reserved, Secret, Service

UNIT_FOLDER = Path("/etc/systemd/system")


@dataclass(frozen=True, slots=True)
class Claims:
    """`folders` are claimed paths below which others may claim more; below a path in `leaves` nobody may."""

    ports: tuple[Port, ...] = ()
    leaves: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.leaves + self.folders


def claims(resource: Resource) -> Claims:
    """What this resource claims beside its id."""
    spec = resource.spec
    if isinstance(spec, Directory):
        return Claims(folders=(spec.path,))
    if isinstance(spec, File):
        return Claims(leaves=(spec.path,))
    if isinstance(spec, Secret):
        return Claims(leaves=(spec.path,))
    if isinstance(spec, Certificate):
        return Claims(leaves=(spec.certificate, spec.key))
    if isinstance(spec, Package):
        return Claims(leaves=tuple(UNIT_FOLDER / unit for unit in spec.masks))
    if isinstance(spec, Service):
        return Claims(ports=spec.ports, leaves=(UNIT_FOLDER / f"{spec.name}.service",))
    if isinstance(spec, Reserved):
        return Claims(ports=spec.ports)
    if isinstance(spec, Container):
        return Claims(ports=spec.host_ports)
    if isinstance(spec, Image):
        return Claims()
    raise AssertionError(spec)


def conflict(one: Resource, other: Resource) -> str | None:
    """Why these two cannot both be here, as the end of a sentence; None when they can."""
    if one.id == other.id:
        return f"{one.id} is declared twice"
    mine, theirs = claims(one), claims(other)
    for port in mine.ports:
        for taken in theirs.ports:
            if port.overlaps(taken):
                return f"{one.id} wants port {port}, which {other.id} holds as {taken}"
    for path in mine.paths:
        if path in theirs.paths:
            return f"{one.id} wants the path {path}, which {other.id} holds"
    for above, holder, below, wanting in ((mine, one, theirs, other), (theirs, other, mine, one)):
        for path in below.paths:
            if any(leaf in path.parents for leaf in above.leaves):
                return f"{wanting.id} wants {path}, which lies below what {holder.id} makes no directory"
    return None


def check_within(resources: Sequence[Resource]) -> None:
    """Refuse a list in which two resources claim the same."""
    holders = _Holders()
    for resource in resources:
        _check(resource, holders.near(resource))
        holders.add(resource)


def check_beside(assigned: Sequence[Resource], carried: Sequence[Resource]) -> None:
    """Refuse an assigned list that claims what a carried resource does.

    A package or directory may have both origins if both ask the same of it, in the same words: whoever looks
    whether anything has to be done must find the same for both. Only which files a package comes from is the carried
    one's alone.
    """
    holders = _Holders()
    for resource in carried:
        holders.add(resource)
    by_id = {one.id: one for one in carried}
    for resource in assigned:
        twin = by_id.get(resource.id) if resource.kind in SHARED_KINDS else None
        if twin and not _same(twin, resource):
            raise Refused(
                f"{resource.id} is carried as well, and asks for something else there; "
                "ask the same in the same words, or leave it out"
            )
        _check(resource, (one for one in holders.near(resource) if one is not twin))


def collisions(carried: Iterable[Resource], assigned: Sequence[Resource]) -> dict[str, str]:
    """Which carried resources claim what an assigned one has: id → why, as `check_beside` would refuse the other."""
    holders = _Holders()
    for resource in assigned:
        holders.add(resource)
    found: dict[str, str] = {}
    for resource in carried:
        for other in holders.near(resource):
            shared = resource.id == other.id and resource.kind in SHARED_KINDS
            if shared and _same(resource, other):
                continue
            if shared:
                why: str | None = f"{resource.id} is declared here as well, and asks for something else there"
            else:
                why = conflict(resource, other)
            if why:
                found.setdefault(resource.id, why)
    return found


def check_state_folder(resources: Iterable[Resource], state: Path, allowed: Iterable[Path] = ()) -> None:
    """Refuse files and directories inside the agent's own folder, but for the `allowed` ones.

    A directory above it may be declared, as long as that neither gives it to somebody nor empties it ever.
    """
    permitted, above = set(allowed), set(state.parents)
    for resource in resources:
        if not isinstance(resource.spec, (Directory, File)):
            continue
        path = resource.spec.path
        if path not in permitted and path.is_relative_to(state):
            raise Refused(f"{resource.id} lies in the agent's own folder {state}, where nobody else may put anything")
        if path in above and not _harmless_above(resource.spec):
            raise Refused(
                f"{resource.id} lies above the agent's own folder {state}; there only a directory of root's can"
                " be declared, which nobody else can write, without data = true"
            )


def _same(carried: Resource, assigned: Resource) -> bool:
    if isinstance(carried.spec, Package):
        return replace(carried.spec, files=()) == assigned.spec
    return carried.source == assigned.source


class _Holders:
    """Resources by what they hold: a long list isn't compared each with each."""

    def __init__(self) -> None:
        self._ids: dict[str, list[Resource]] = defaultdict(list)
        self._ports: dict[tuple[str, int], list[Resource]] = defaultdict(list)
        self._at: dict[Path, list[Resource]] = defaultdict(list)
        self._below: dict[Path, list[Resource]] = defaultdict(list)

    def add(self, resource: Resource) -> None:
        held = claims(resource)
        self._ids[resource.id].append(resource)
        for port in held.ports:
            self._ports[port.protocol, port.number].append(resource)
        for path in held.paths:
            self._at[path].append(resource)
            for parent in path.parents:
                self._below[parent].append(resource)

    def near(self, resource: Resource) -> Iterator[Resource]:
        """Those that may be in conflict with it; all that are, are among them."""
        wanted = claims(resource)
        yield from self._ids.get(resource.id, ())
        for port in wanted.ports:
            yield from self._ports.get((port.protocol, port.number), ())
        for path in wanted.paths:
            yield from self._below.get(path, ())
            for place in (path, *path.parents):
                yield from self._at.get(place, ())


def _harmless_above(spec: Directory | File) -> bool:
    if not isinstance(spec, Directory) or spec.data or spec.mode & 0o022:
        return False
    return spec.owner.partition(":")[0] == "root"


def _check(resource: Resource, others: Iterable[Resource]) -> None:
    for other in others:
        why = conflict(resource, other)
        if why:
            raise Refused(f"{why}; only one of them can be declared")
