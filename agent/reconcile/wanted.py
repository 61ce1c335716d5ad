"""A resource as it is to be made now: its kind, and what it refers to filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.errors import Refused, Unavailable
from agent.kinds.kind import Kind, Machine, Wanted
from agent.resources import Resource, late_references

# Each kind has its own types of observation and action, which never leave it; only a map of kinds must name them.
Kinds = Mapping[str, Kind[Any, Any, Any]]

REFERRED = {"secret": "secret", "fingerprint": "certificate"}


def kind_of(resource: Resource, kinds: Kinds) -> Kind[Any, Any, Any]:
    """The kind of a resource; Refused when this agent has none of that name."""
    kind = kinds.get(resource.kind)
    if kind is None:
        raise Refused(f"{resource.id}: this agent knows no kind {resource.kind}")
    return kind


def by_id(resources: Sequence[Resource]) -> dict[str, Resource]:
    """A list by its ids."""
    return {resource.id: resource for resource in resources}


def filled(
    resource: Resource, own: Mapping[str, Resource], kinds: Kinds, machine: Machine, *, unmade: str | None = None
) -> Wanted:
    """A resource with the values of what it refers to, all of it in its `own` list.

    What isn't made yet is `unmade` or, without that, Unavailable.
    """
    values: dict[str, str] = {}
    for reference in sorted(late_references(resource.spec)):
        group, _, name = reference.partition(".")
        source = own[f"{REFERRED[group]}:{name}"]
        value = kind_of(source, kinds).value(source.spec, machine) or unmade
        if value is None:
            raise Unavailable(f"it uses {source.id}, which is not on this machine")
        values[reference] = value
    return Wanted(resource, machine.stamp(resource, values), values)
