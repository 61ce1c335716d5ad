"""What a person is shown of the mesh: values, computed purely from a node's record and the time it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from agent.control.registry import Node, Refusal
from agent.fields import JsonValue


class Presence(Enum):
    """Whether a node is there, in the words that are shown."""

    HERE = "here"
    OUT_OF_TOUCH = "out of touch"
    NEVER_SPOKEN = "never spoken"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node's line in the list. `silent` is for how many seconds nothing was heard; None if nothing ever
    was.

    `wanted` and `applied` are serials: of the newest declaration (0: none) and of the newest one that it said
    it applied (None: it never said). `refusal` is why it refuses what is wanted now.
    """

    name: str
    presence: Presence
    silent: float | None
    last_seen: float | None
    wanted: int
    applied: int | None
    carried: int
    failures: int
    refusal: str


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """All that is known of one node. Times are seconds since the epoch; `public_key` is its identity."""

    row: NodeRow
    public_key: bytes
    enrolled: float
    version: str
    profile: Mapping[str, JsonValue]
    holdings: tuple[str, ...]
    carried: tuple[int, ...]
    failures: Mapping[str, str]
    refusal: Refusal | None


@dataclass(frozen=True, slots=True)
class Mesh:
    """Every node, and what concerns the whole.

    `parked` counts the messages that could not be understood; `serving` tells whether the control plane runs,
    without which nobody is heard.
    """

    nodes: tuple[NodeRow, ...]
    parked: int
    serving: bool


def node_row(node: Node, now: float, patience: float) -> NodeRow:
    """A node's line, `now`; after `patience` seconds of silence it is out of touch."""
    silent = None if node.last_seen is None else max(0.0, now - node.last_seen)
    if silent is None:
        presence = Presence.NEVER_SPOKEN
    else:
        presence = Presence.HERE if silent <= patience else Presence.OUT_OF_TOUCH
    return NodeRow(
        name=node.name,
        presence=presence,
        silent=silent,
        last_seen=node.last_seen,
        wanted=node.wanted,
        applied=node.reported,
        carried=len(node.carried),
        failures=len(node.failures),
        refusal=node.refusal.why if node.refusal and _refuses_now(node) else "",
    )


def node_detail(node: Node, now: float, patience: float) -> NodeDetail:
    """Everything about a node, `now`."""
    return NodeDetail(
        row=node_row(node, now, patience),
        public_key=node.public_key,
        enrolled=node.enrolled,
        version=node.version,
        profile=node.profile,
        holdings=node.holdings,
        carried=node.carried,
        failures=node.failures,
        refusal=node.refusal,
    )


def _refuses_now(node: Node) -> bool:
    refusal = node.refusal
    if refusal is None:
        return False
    if refusal.serial is None:
        return node.reported_at is None or refusal.at > node.reported_at
    return refusal.serial == node.wanted and (node.reported or 0) < node.wanted
