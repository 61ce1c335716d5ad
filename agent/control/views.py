"""What a person is shown of the mesh: values, computed purely from a node's record and the time it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from agent.control.enrolment import IssuedToken
from agent.control.registry import Node, Refusal
from agent.fields import JsonValue

# What a message's way and a machine without time synchronisation may come to.
_CLOCK_TOLERANCE = 5.0


class Presence(Enum):
    """Whether a node is there, in the words that are shown."""

    HERE = "here"
    OUT_OF_TOUCH = "out of touch"
    NEVER_SPOKEN = "never spoken"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node's line in the list. `silent` is for how many seconds nothing was heard; None if nothing ever
    was.

    `clock_offset` is by how many seconds its clock is off, if that is more than five: ahead, or behind (negative).
    `wanted` and `applied` are serials: of the newest declaration (0: none) and of the newest one that it said it
    applied (None: it never said). `assigned` are the host ports that assignments have there. `refusal` is why it
    refuses what is wanted now.
    """

    name: str
    presence: Presence
    silent: float | None
    last_seen: float | None
    wanted: int
    applied: int | None
    carried: int
    assigned: tuple[int, ...]
    failures: int
    refusal: str
    clock_offset: float | None
    version: str


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """All that is known of one node. Times are seconds since the epoch; `public_key` is its identity."""

    row: NodeRow
    public_key: bytes
    enrolled: float
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


class TokenStanding(Enum):
    """How far a token has got."""

    UNSPENT = "good"
    SPENT = "spent, its node has yet to speak"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token's line in the list; of its secret nothing is known. Times are seconds since the epoch."""

    node: str
    standing: TokenStanding
    broker: str
    made: float
    expires: float


def token_row(token: IssuedToken, now: float) -> TokenRow:
    """A token's line, `now`."""
    if token.spending is not None:
        standing = TokenStanding.SPENT
    else:
        standing = TokenStanding.UNSPENT if now < token.expires else TokenStanding.EXPIRED
    return TokenRow(token.node, standing, token.broker, token.made, token.expires)


def node_row(node: Node, now: float, patience: float, assigned: Collection[int] = ()) -> NodeRow:
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
        assigned=tuple(sorted(set(assigned))),
        failures=len(node.failures),
        refusal=node.refusal.why if node.refusal and _refuses_now(node) else "",
        clock_offset=node.clock_offset if abs(node.clock_offset or 0.0) > _CLOCK_TOLERANCE else None,
        version=node.version,
    )


def node_detail(node: Node, now: float, patience: float, assigned: Collection[int] = ()) -> NodeDetail:
    """Everything about a node, `now`."""
    return NodeDetail(
        row=node_row(node, now, patience, assigned),
        public_key=node.public_key,
        enrolled=node.enrolled,
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
