"""What a plan says of each resource, whoever makes the plan: a node of its own list, or the mesh of a node's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Change(Enum):
    """What becomes of a resource."""

    CREATE = "create"
    CHANGE = "change"
    KEEP = "keep"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Line:
    """One resource's part of a plan; `difference` is a unified diff of a file or empty, and holds no secret."""

    id: str
    change: Change
    reason: str
    difference: str = ""
