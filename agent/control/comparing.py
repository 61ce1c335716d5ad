"""What a new declaration would change against the last one: purely, resource by resource.

A secret's value is in no declaration but sealed, which isn't shown; where a file's content uses one, it holds its name.
A box that differs is another value, or one for another machine in the node's place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.difference import unified
from agent.fields import JsonValue
from agent.reconcile.change import Change, Line


@dataclass(frozen=True, slots=True)
class Comparison:
    """`lines` in the order of applying, what is removed after them. `waits`: assignments are yet to be declared."""

    lines: tuple[Line, ...]
    waits: bool

    @property
    def changes(self) -> bool:
        return any(line.change is not Change.KEEP for line in self.lines)


Item = Mapping[str, JsonValue]


def compare(before: Sequence[Item], after: Sequence[Item], *, waits: bool = False) -> Comparison:
    """From the resources that were declared to those that would be."""
    earlier = {_id(item): item for item in before}
    later = {_id(item) for item in after}
    lines = [_line(earlier.get(_id(item)), item) for item in after]
    lines += [Line(id, Change.REMOVE, "it is no longer declared") for id in reversed(earlier) if id not in later]
    return Comparison(tuple(lines), waits)


def _line(before: Item | None, after: Item) -> Line:
    id = _id(after)
    if before is None:
        return Line(id, Change.CREATE, "it is not declared yet")
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    if not changed:
        return Line(id, Change.KEEP, "")
    if changed == ["sealed"]:
        return Line(id, Change.CHANGE, "the mesh has changed it")
    words = " and ".join(filter(None, [", ".join(changed[:-1]), changed[-1]]))
    return Line(id, Change.CHANGE, f"its {words} change{'s' if len(changed) == 1 else ''}", _difference(before, after))


def _difference(before: Item, after: Item) -> str:
    old, new = before.get("content"), after.get("content")
    if after.get("kind") != "file" or old == new or not isinstance(old, str) or not isinstance(new, str):
        return ""
    return unified(old, new, "declared", "new")


def _id(item: Item) -> str:
    return f"{item['kind']}:{item['name']}"
