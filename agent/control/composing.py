"""From what is arranged for a node to the list that is declared to it: decided purely.

- The list is the node's own, then its assignments in their order. Packages, directories and images that several of them
  declare alike are declared once.
- Nothing is newly assigned before the node's first report, which says what it carries: until then it waits.
- A reference to another node's port or address has a value, or the whole is refused.
- What the mesh has of the secrets that are used comes first, sealed for the node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.control.assigning import Arrangement, Assignment, Released, given_back, may_be_open
from agent.control.modules import Filling, Module, fill_module, foreign, node_of, references
from agent.control.parts import Part, Secrets, check, only, secret_of, secrets_part, unshared, used_secrets
from agent.control.ports import PortRange, Situation, allocate, ephemeral_range, pins
from agent.control.registry import Node
from agent.errors import Refused
from agent.fields import JsonValue, nearest, quoted
from agent.resources import SEAL_BYTES, Bridge, Container, Document, Resource, claims, fill_document

# What can hold a port open.
_BINDING = frozenset({"service", "container", "reserved"})


@dataclass(frozen=True, slots=True)
class Checked:
    """A list that validates: its items as they are signed, and their ids."""

    items: tuple[Mapping[str, JsonValue], ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What other nodes have that is referred to: their addresses (None: unknown) and what is arranged for them.

    `used` are the references, as `used_references` gives them.
    """

    addresses: Mapping[str, str | None] = field(default_factory=dict)
    arrangements: Mapping[str, Arrangement] = field(default_factory=dict)
    used: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Target:
    """The node that is composed for. `next_serial` is that of its next declaration, `range` where ports are from.

    `declared` are the ids that its newest declaration holds. `modules` has every version that is assigned to it.
    """

    node: Node
    next_serial: int
    declared: Collection[str]
    range: PortRange
    modules: Mapping[tuple[str, int], Module]
    secrets: Secrets = field(default_factory=Secrets)

    @property
    def has_reported(self) -> bool:
        return self.node.reported_at is not None


@dataclass(frozen=True, slots=True)
class Composed:
    """A node's whole list, and its arrangement with the ports that were given.

    `uses` are the nodes that it refers to, `secrets` the mesh's secrets, each with the assignments that use it ("": its
    own list). `waits` says that assignments are left out until the node first reports.
    """

    arrangement: Arrangement
    checked: Checked
    uses: frozenset[str]
    secrets: Mapping[str, tuple[str, ...]]
    waits: bool


def used_references(arrangement: Arrangement, modules: Mapping[tuple[str, int], Module]) -> frozenset[str]:
    """The references to nodes' ports and addresses in all that is arranged."""
    return foreign(_references(arrangement, modules))


def named_secrets(arrangement: Arrangement, modules: Mapping[tuple[str, int], Module]) -> frozenset[str]:
    """The names of secrets that anything arranged refers to, whoever's they are."""
    return frozenset(filter(None, map(secret_of, _references(arrangement, modules))))


def compose(before: Arrangement, after: Arrangement, target: Target, elsewhere: Elsewhere) -> Composed:
    """The list that `after` comes to on this node, which has had `before` until now.

    Refused when it doesn't validate, a reference has no value, no port is left, or a port of the author's choice is
    somebody else's.
    """
    node = target.node
    released = tuple(one for one in after.released if may_be_open(one, target.node, target.declared))
    given = _with_ports(after, released, target)
    again = {port for one in given.assignments for port in one.ports.values()}
    released = tuple(one for one in released if one.port not in again)
    parts = list(_parts(given, target, replace(elsewhere, arrangements={**elsewhere.arrangements, node.name: given})))
    secrets = used_secrets(parts, target.secrets)
    parts.insert(0, secrets_part(secrets, target.secrets))
    check(parts)
    uses = frozenset(filter(None, map(node_of, elsewhere.used))) - {node.name}
    waiting = {one.name: one for one in after.assignments if not (target.has_reported or one.declared)}
    there = [part for part in parts[1:] if part.name not in waiting]
    used = {name for name, users in secrets.items() if not waiting.keys() >= set(users)}
    holders = {part.name: tuple(one.id for one in part.resources if one.kind in _BINDING) for part in there}
    assignments = tuple(
        waiting.get(one.name) or replace(one, holders=holders[one.name], declared=True) for one in given.assignments
    )
    final = replace(given, assignments=assignments)
    released = (*released, *given_back(before, final, target.next_serial))
    checked = _checked([only(parts[0], used), *there])
    return Composed(replace(final, released=released), checked, uses, secrets, waits=bool(waiting))


def check_module(module: Module) -> frozenset[str]:
    """Refuse a module that, with its defaults, no node could be given. The secrets that it uses and doesn't declare."""
    # Any value will do for what is known only of a node, and any secret may be the mesh's by then.
    names = foreign(references(module.document.items))
    values = {name: "127.0.0.1" if name.startswith("address.") else "65535" for name in names}
    filling = Filling(module.name, {}, "node", values)
    chosen = {port.number for port in pins(fill_module(module, filling, {}))}
    free = (number for number in range(1, 65535) if number not in chosen)
    ports = dict(zip(module.ports, free, strict=False))
    parts = [Part("", tuple(fill_module(module, filling, ports)))]
    named = set(filter(None, map(secret_of, references(module.document.items))))
    secrets = Secrets(named, {name: bytes(SEAL_BYTES + 1) for name in named})
    used = used_secrets(parts, secrets)
    parts.insert(0, secrets_part(used, secrets))
    for resource in check(parts):
        _check_use(module, {number: name for name, number in ports.items()}, resource)
    return frozenset(used)


def _references(arrangement: Arrangement, modules: Mapping[tuple[str, int], Module]) -> frozenset[str]:
    documents = [modules[one.module, one.version].document for one in arrangement.assignments]
    if arrangement.own:
        documents.append(arrangement.own.document)
    return frozenset().union(*(references(document.items) for document in documents))


def _checked(parts: Sequence[Part]) -> Checked:
    items = tuple(item for part in parts for item in part.items)
    return Checked(items, tuple(resource.id for part in parts for resource in part.resources))


def _where(assignment: Assignment) -> str:
    return f"{assignment.name}: "


def _with_ports(arrangement: Arrangement, released: Iterable[Released], target: Target) -> Arrangement:
    """Every assignment with the host ports that its module wants."""
    if not arrangement.assignments:
        return arrangement
    modules = [target.modules[one.module, one.version] for one in arrangement.assignments]
    taken = {one.port for one in released} | pins(_own_items_for_pins(arrangement, target))
    for assignment, module in zip(arrangement.assignments, modules, strict=True):
        taken.update(assignment.ports.values())
        filling = Filling(assignment.name, assignment.settings, target.node.name, {})
        taken.update(pins(fill_module(module, filling, {}, _where(assignment))))
    assignments = []
    for assignment, module in zip(arrangement.assignments, modules, strict=True):
        situation = Situation(
            target.node.name, target.range, ephemeral_range(target.node.profile), target.node.carried, frozenset(taken)
        )
        wanted = {name: port.protocol for name, port in module.ports.items()}
        ports = allocate(wanted, assignment.ports, situation)
        taken.update(ports.values())
        assignments.append(replace(assignment, ports=ports))
    return replace(arrangement, assignments=tuple(assignments))


def _own_items_for_pins(arrangement: Arrangement, target: Target) -> list[dict[str, JsonValue]]:
    if arrangement.own is None:
        return []
    return fill_document(arrangement.own.document, arrangement.own.settings, target.node.name)


def _parts(arrangement: Arrangement, target: Target, elsewhere: Elsewhere) -> Iterator[Part]:
    """Each part with its items filled, and without what an earlier one declares alike."""
    shared: dict[str, str] = {}
    if arrangement.own:
        document = arrangement.own.document
        values = _values(document, "", target.node.name, elsewhere)
        items = fill_document(document, arrangement.own.settings, target.node.name, values)
        yield Part("", tuple(unshared(items, shared)))
    for assignment in arrangement.assignments:
        module, where = target.modules[assignment.module, assignment.version], _where(assignment)
        values = _values(module.document, where, target.node.name, elsewhere)
        filling = Filling(assignment.name, assignment.settings, target.node.name, values)
        numbers = {name: port.number for name, port in assignment.ports.items()}
        items = fill_module(module, filling, numbers, where)
        yield Part(assignment.name, tuple(unshared(items, shared)), assignment.ports)


def _values(document: Document, where: str, node: str, elsewhere: Elsewhere) -> dict[str, str]:
    """What a list's references to nodes stand for."""
    if not elsewhere.used:
        return {}
    places = references(document.items, where)
    return {name: _value(name, places[name], node, elsewhere) for name in sorted(foreign(places))}


def _value(name: str, where: str, node: str, elsewhere: Elsewhere) -> str:
    other = node_of(name) or ""
    uses = f"{where}: ${{{name}}} has no value"
    if name.startswith("address."):
        if other not in elsewhere.addresses:
            raise Refused(f"{uses}: there is no node {quoted(other)}{nearest(other, elsewhere.addresses)}")
        address = elsewhere.addresses[other]
        if address is None:
            raise Refused(f"{uses}: {other} has not said at which address others reach it")
        return address
    _, _, assigned, port = name.split(".")
    arrangement = elsewhere.arrangements.get(other)
    if arrangement is None and other not in elsewhere.addresses:
        raise Refused(f"{uses}: there is no node {quoted(other)}{nearest(other, elsewhere.addresses)}")
    assignment = arrangement.find(assigned) if arrangement else None
    if assignment is None:
        known = [one.name for one in arrangement.assignments] if arrangement else []
        raise Refused(f"{uses}: nothing called {quoted(assigned)} is assigned to {other}{nearest(assigned, known)}")
    if port in assignment.ports:
        return str(assignment.ports[port].number)
    if not assignment.ports and other != node:
        raise Refused(f"{uses} yet: {assigned} has no ports on {other}, or waits for that node's first report")
    hint = nearest(port, assignment.ports)
    raise Refused(f"{uses}: the module {assignment.module} of {assigned} has no port {quoted(port)}{hint}")


def _check_use(module: Module, ports: Mapping[int, str], resource: Resource) -> None:
    """Refuse a resource that takes one of its module's `ports` (names by number) for another than that is."""
    for claim in claims(resource).ports:
        name = ports.get(claim.number)
        if name and module.ports[name].protocol != claim.protocol:
            raise Refused(
                f"{resource.id} takes the module's port {name} as {claim.protocol}, but it is "
                f"{module.ports[name].protocol}; write it alike in both places"
            )
    if isinstance(resource.spec, Container) and isinstance(resource.spec.network, Bridge):
        for published in resource.spec.network.ports:
            name = ports.get(published.host.number)
            if name and module.ports[name].inner not in (None, published.container):
                raise Refused(
                    f"{resource.id} publishes its port {published.container} as the module's port {name}, which is "
                    f"{module.ports[name]}; write it alike in both places"
                )
