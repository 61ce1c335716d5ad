"""The parts of a node's list (the mesh's secrets, the node's own list, its assignments), and whether they can stand
side by side; purely.

- What can't is refused by the names of the parts.
- A secret that no part declares is the mesh's. Those that are used stand first, each once, however many parts use it. A
  part's own secret is what it means by that name; one that could be another part's or the mesh's is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.control.modules import references
from agent.control.ports import HostPort
from agent.errors import Refused
from agent.fields import JsonValue, canonical, nearest, quoted
from agent.resources import Context, Resource, check_state_folder, check_within, claims, parse_list

# What several parts of one list may declare, as long as they ask the same of it.
_SHARED = frozenset({"package", "directory", "image"})
# Where a node keeps its state unless it was told otherwise; its own answer is what counts.
_USUAL_STATE = Path("/var/lib/mesh-agent")

Item = Mapping[str, JsonValue]


class _AnyId(Collection[str]):
    """What a node carries isn't known by id: any need may be one, and the node refuses one that isn't."""

    def __contains__(self, id: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Secrets:
    """The mesh's secrets: the `names` of all, and what those that a node's lists name were `sealed` to for it."""

    names: Collection[str] = ()
    sealed: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a node's list: its own (its name is ""), an assignment's, or the mesh's secrets (None).

    `resources` are the items as they were read.
    """

    name: str | None
    items: tuple[Item, ...]
    ports: Mapping[str, HostPort] = field(default_factory=dict)
    resources: tuple[Resource, ...] = ()

    @property
    def title(self) -> str:
        if self.name is None:
            return "the mesh"
        return f"the assignment {self.name}" if self.name else "the node's own list"

    @property
    def where(self) -> str:
        """What stands before the number of an item, to say its place."""
        if self.name is None:
            return "the mesh's secrets"
        return f"{self.name}: resource" if self.name else "resource"


def secret_of(reference: str) -> str | None:
    """The secret that a reference names; None when it is something else's."""
    group, _, name = reference.partition(".")
    return name if group == "secret" and name and "." not in name else None


def used_secrets(parts: Sequence[Part], secrets: Secrets) -> dict[str, tuple[str, ...]]:
    """The secrets of the mesh that these parts use, each with the names of the parts that do.

    Refused for one that is nobody's, with the nearest name, and for one that could be somebody else's too.
    """
    own = [{item.get("name") for item in part.items if item.get("kind") == "secret"} for part in parts]
    used: dict[str, tuple[str, ...]] = {}
    for part, mine in zip(parts, own, strict=True):
        for name, id in _named(part.items).items():
            if name in mine:
                continue
            other = next((other for other, theirs in zip(parts, own, strict=True) if name in theirs), None)
            if name not in secrets.names:
                if other is None:
                    hint = nearest(name, {*secrets.names, *map(str, mine)})
                    raise Refused(
                        f"{id} uses ${{secret.{name}}}, but neither the node's lists nor the mesh have a secret "
                        f"{quoted(name)}{hint}; `agent control secret set {name}` gives the mesh one"
                    )
            elif other is not None:
                raise Refused(
                    f"{id} uses ${{secret.{name}}}, which the mesh has and {other.title} declares as well; call one of "
                    "them otherwise"
                )
            else:
                used[name] = (*used.get(name, ()), part.name or "")
    return used


def secret_item(name: str, box: bytes) -> dict[str, JsonValue]:
    """A secret of the mesh as a node's list holds it."""
    return {"kind": "secret", "name": name, "sealed": base64.b64encode(box).decode("ascii")}


def secrets_part(names: Iterable[str], secrets: Secrets) -> Part:
    """The part that these secrets of the mesh are."""
    return Part(None, tuple(secret_item(name, secrets.sealed[name]) for name in sorted(names)))


def only(part: Part, names: Collection[str]) -> Part:
    """The same part with what has one of these names."""
    return replace(
        part,
        items=tuple(item for item in part.items if item["name"] in names),
        resources=tuple(resource for resource in part.resources if resource.name in names),
    )


def unshared(items: Iterable[dict[str, JsonValue]], shared: dict[str, str]) -> Iterator[dict[str, JsonValue]]:
    """Those items that no earlier part has declared alike; `shared` remembers."""
    mine: dict[str, str] = {}
    for item in items:
        if item.get("kind") in _SHARED:
            id = f"{item['kind']}:{item.get('name')}"
            asks = canonical({key: value for key, value in item.items() if key != "needs"})
            if shared.get(id) == asks:
                continue
            mine.setdefault(id, asks)
        yield item
    for id, asks in mine.items():
        shared.setdefault(id, asks)


def check(parts: list[Part]) -> tuple[Resource, ...]:
    """Read every part, and refuse what can't stand side by side; each part in the list gets its resources."""
    context = Context(_USUAL_STATE)
    resources: list[Resource] = []
    holders: dict[str, Part] = {}
    for at, part in enumerate(parts):
        for number, item in enumerate(part.items):
            if "role" in item:
                raise Refused(f"{part.where}[{number}].role: only what a bundle carries has a role; leave it out")
            if part.name is not None and item.get("kind") == "secret" and "sealed" in item:
                raise Refused(
                    f"{part.where}[{number}].sealed: only the mesh seals a secret; give it the value with `agent "
                    "control secret set NAME`, and leave this resource out"
                )
        read = parse_list(part.items, context, beside=_AnyId(), after=resources, where=part.where)
        for resource in read:
            other = holders.setdefault(resource.id, part)
            if other.name != part.name:
                raise Refused(
                    f"{resource.id} is declared by {part.title} and, asking for something else, by {other.title}; "
                    "only one of them can be there"
                )
        resources.extend(read)
        parts[at] = replace(part, resources=read)
    _check_ports(parts)
    check_within(resources)
    check_state_folder(resources, _USUAL_STATE)
    return tuple(resources)


def _named(items: Iterable[Item]) -> dict[str, str]:
    """The secrets that items refer to, each with the id of the first that does."""
    found: dict[str, str] = {}
    for item in items:
        for name in filter(None, map(secret_of, references([item]))):
            found.setdefault(name, f"{item.get('kind')}:{item.get('name')}")
    return found


def _check_ports(parts: Sequence[Part]) -> None:
    """Refuse a port of the author's choice that another part was given."""
    given = {port: (part, name) for part in parts for name, port in part.ports.items()}
    for part in parts:
        for resource in part.resources:
            for claim in claims(resource).ports:
                holder, name = given.get(HostPort(claim.protocol, claim.number), (part, ""))
                if holder.name != part.name:
                    raise Refused(
                        f"{resource.id} wants port {claim}, which {holder.title} holds as its port {name}; "
                        "choose another number"
                    )
