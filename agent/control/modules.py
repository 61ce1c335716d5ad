"""Modules: lists of resources with parameters and open host ports, filled for one assignment. All of it is pure.

- The names of services, containers, secrets, certificates and reservations are the assignment's name, a hyphen and what
  the module calls them; references to them follow. Everything else is called as the module says, which may say
  `${assignment.name}`.
- `${port.NAME}` is the host port that the assignment got for the module's port NAME.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from agent.errors import Refused
from agent.fields import Fields, JsonValue, dns_label, nearest, quoted
from agent.resources import Document, document_values, map_item, read_document
from agent.resources.model import LATE_KINDS
from agent.resources.ports import Protocol
from agent.template import Reference, Template

# What is called by a name of the machine's or the node's that two assignments of one module would both want.
_PREFIXED = frozenset({"service", "container", "secret", "certificate", "reserved"})


@dataclass(frozen=True, slots=True)
class ModulePort:
    """A port whose host part is open. `inner` is what a container listens on inside, if the module says so."""

    protocol: Protocol
    inner: int | None

    def __str__(self) -> str:
        return self.protocol if self.inner is None else f"{self.inner}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class Module:
    """What can be assigned to nodes; `document` isn't filled yet."""

    name: str
    document: Document
    ports: Mapping[str, ModulePort]


@dataclass(frozen=True, slots=True)
class Filling:
    """For what a module is filled: the assignment's name and settings, the node, and values of others' references."""

    assignment: str
    settings: Mapping[str, str]
    node: str
    elsewhere: Mapping[str, str]


def read_module(fields: Fields) -> Module:
    """A module: `name`, `[params]`, `[ports]` and `[[resource]]`. Refused when it isn't one."""
    name = dns_label(fields.text("name"), fields.path("name") + ":")
    ports = {
        dns_label(port, f"{fields.path('ports')}:"): _port(text, f"{fields.path('ports')}.{port}")
        for port, text in fields.text_table("ports").items()
    }
    document = read_document(fields)
    fields.finish()
    if not document.items:
        raise Refused(f"The module {name} has no resources; it must have one at least.")
    return Module(name, document, ports)


def encode_module(module: Module) -> dict[str, JsonValue]:
    """What `read_module` reads back."""
    return {
        "name": module.name,
        "params": dict(module.document.params),
        "ports": {name: str(port) for name, port in module.ports.items()},
        "resource": [Fields(item, "resource").values() for item in module.document.items],
    }


def fill_module(
    module: Module, filling: Filling, ports: Mapping[str, int], where: str = ""
) -> list[dict[str, JsonValue]]:
    """The module's list for one assignment; ports that aren't in `ports` stay open.

    Refused when a setting names no parameter or a reference none of the module's ports. `where` is put before places.
    """
    items = [Fields(item, f"{where}resource[{at}]").values() for at, item in enumerate(module.document.items)]
    _check_ports(module, items, where)
    values = {
        **document_values(module.document, filling.settings, filling.node),
        "assignment.name": filling.assignment,
        **{f"port.{name}": str(number) for name, number in ports.items()},
        **filling.elsewhere,
    }
    filled = [
        map_item(item, f"{where}resource[{at}]", lambda one, place: _filled(one, place, values))
        for at, item in enumerate(items)
    ]
    own = frozenset(f"{item['kind']}:{item.get('name')}" for item in filled if _is_prefixed(item.get("kind")))
    return [_renamed(item, own, filling.assignment) for item in filled]


def references(items: Iterable[object], where: str = "") -> dict[str, str]:
    """Every name that these items refer to, with the place where it first does."""
    found: dict[str, str] = {}

    def note(one: Template, place: str) -> Template:
        for name in one.references:
            found.setdefault(name, place)
        return one

    for at, item in enumerate(items):
        map_item(Fields(item, f"{where}resource[{at}]").values(), f"{where}resource[{at}]", note)
    return found


def foreign(names: Iterable[str]) -> frozenset[str]:
    """Those of these references that speak of a node: `port.NODE.ASSIGNMENT.NAME` and `address.NODE`."""
    return frozenset(name for name in names if node_of(name) is not None)


def node_of(name: str) -> str | None:
    """The node that a reference speaks of; None when it speaks of none."""
    parts = name.split(".")
    if (parts[0], len(parts)) in (("port", 4), ("address", 2)):
        return parts[1]
    return None


def _port(text: str, where: str) -> ModulePort:
    inner, slash, protocol = text.rpartition("/")
    number = int(inner) if inner.isdecimal() and inner.isascii() and len(inner) <= 5 else None
    is_number = number is not None and 1 <= number <= 65535
    if protocol not in ("tcp", "udp") or bool(slash) != is_number:
        raise Refused(f'{where}: {quoted(text)} is no open port; write "80/tcp", or "tcp" where nothing is inside')
    return ModulePort("udp" if protocol == "udp" else "tcp", number)


def _check_ports(module: Module, items: Iterable[object], where: str) -> None:
    for name, place in references(items, where).items():
        group, _, port = name.partition(".")
        if group == "port" and node_of(name) is None and port not in module.ports:
            raise Refused(
                f"{place}: the module {module.name} has no port {quoted(port)}{nearest(port, module.ports)}"
                " (another assignment's is ${port.NODE.ASSIGNMENT.NAME})"
            )


def _filled(one: Template, where: str, values: Mapping[str, str]) -> Template:
    filled = one.fill(values)
    for name in sorted(filled.references):
        if name.startswith("param."):
            known = [value for value in values if value.startswith("param.")]
            raise Refused(f"{where}: there is no parameter called ${{{name}}}{nearest(name, known)}")
    return filled


def _renamed(item: dict[str, JsonValue], own: frozenset[str], assignment: str) -> dict[str, JsonValue]:
    def rename(one: Template, _: str) -> Template:
        return Template(
            tuple(Reference(_late(part.name)) if isinstance(part, Reference) else part for part in one.parts)
        )

    def _late(name: str) -> str:
        group, _, rest = name.partition(".")
        kind = LATE_KINDS.get(group)
        return f"{group}.{assignment}-{rest}" if kind and f"{kind}:{rest}" in own else name

    renamed = map_item(item, "", rename)
    name, needs = renamed.get("name"), renamed.get("needs")
    if _is_prefixed(renamed.get("kind")) and isinstance(name, str):
        renamed["name"] = f"{assignment}-{name}"
    if isinstance(needs, list):
        renamed["needs"] = [_need(need, own, assignment) for need in needs]
    return renamed


def _need(need: JsonValue, own: frozenset[str], assignment: str) -> JsonValue:
    if not isinstance(need, str) or need not in own:
        return need
    kind, _, name = need.partition(":")
    return f"{kind}:{assignment}-{name}"


def _is_prefixed(kind: object) -> TypeGuard[str]:
    return isinstance(kind, str) and kind in _PREFIXED
