"""What is arranged for a node: its own declared list, and modules assigned to it. Values, and how they change; pure.

A port that is given back is free once the node has reported the declaration that drops it and nothing there can have it
open any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.control.ports import HostPort
from agent.control.registry import Node
from agent.errors import Refused
from agent.fields import dns_label, nearest, quoted
from agent.resources import Document


@dataclass(frozen=True, slots=True)
class OwnList:
    """A node's own declared list, not yet filled."""

    document: Document
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A module on a node. `ports` are the host ports it got; `holders` the ids that may have them open.

    `declared`: whether a declaration has ever carried it.
    """

    name: str
    module: str
    version: int
    settings: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, HostPort] = field(default_factory=dict)
    holders: tuple[str, ...] = ()
    declared: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """A port that `assignment` gave back with the declaration `serial`; `holders` are ids that had it open."""

    port: HostPort
    assignment: str
    serial: int
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """All that is arranged for one node."""

    own: OwnList | None = None
    assignments: tuple[Assignment, ...] = ()
    released: tuple[Released, ...] = ()

    def find(self, name: str) -> Assignment | None:
        return next((one for one in self.assignments if one.name == name), None)


def assign(arrangement: Arrangement, assignment: Assignment) -> Arrangement:
    """With one more assignment, at the end. Refused when its name is taken or no DNS label."""
    dns_label(assignment.name, "the assignment's name")
    taken = arrangement.find(assignment.name)
    if taken:
        raise Refused(
            f"An assignment {assignment.name} is there already, of the module {taken.module}; give this one another "
            "name with --as, or unassign that one."
        )
    return replace(arrangement, assignments=(*arrangement.assignments, assignment))


def unassign(arrangement: Arrangement, node: str, name: str) -> Arrangement:
    """Without one assignment. Refused, with the nearest name, when there is none of this name."""
    if arrangement.find(name) is None:
        known = [one.name for one in arrangement.assignments]
        raise Refused(f"Nothing called {quoted(name)} is assigned to {node}{nearest(name, known) or '.'}")
    return replace(arrangement, assignments=tuple(one for one in arrangement.assignments if one.name != name))


def roll(arrangement: Arrangement, module: str, version: int) -> Arrangement:
    """With every assignment of a module at this version of it."""
    moved = (replace(one, version=version) if one.module == module else one for one in arrangement.assignments)
    return replace(arrangement, assignments=tuple(moved))


def given_back(before: Arrangement, after: Arrangement, serial: int) -> Iterator[Released]:
    """The ports that one arrangement has and its successor hasn't; `serial` is the declaration that drops them."""
    still = {port for one in after.assignments for port in one.ports.values()}
    for assignment in before.assignments:
        for port in assignment.ports.values():
            if port not in still:
                yield Released(port, assignment.name, serial, assignment.holders)


def may_be_open(released: Released, node: Node, declared: Collection[str]) -> bool:
    """Whether something on the node may still have a port that was given back.

    `declared` are the ids that its newest declaration holds.
    """
    if node.holds is None or node.holds < released.serial:
        return True
    left = (id for id in released.holders if id in node.holdings)
    is_of_newest = node.holds >= node.wanted
    return any(not is_of_newest or id not in declared or id in node.failures for id in left)
