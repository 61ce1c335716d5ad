"""From a list that somebody wrote to a signed declaration, and from that to what the node says of it.

- The whole list is validated before anything changes; what a node alone can know (what it carries, what it
  can do) is its own to refuse, in words that come back.
- A serial is one more than all that was stored or reported. Signing and storing are one transaction; sending
  is the service's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from agent.control.registry import Node, next_serial, recovery_copy
from agent.control.store import Store, Wanted
from agent.envelope import SigningKey
from agent.errors import Refused
from agent.fields import Fields, JsonValue, nearest, quoted
from agent.resources import (
    Context,
    Declaration,
    Document,
    check_state_folder,
    check_within,
    encode_declaration,
    fill_document,
    open_declaration,
    parse_list,
    read_declaration,
)
from agent.resources.declaration import LARGEST_SERIAL

# Where a node keeps its state unless it was told otherwise; its own answer is what counts.
_USUAL_STATE = Path("/var/lib/mesh-agent")
# Asking SQLite whether anything changed costs some microseconds: often at first, since most answers come at once.
_EAGER_SECONDS, _EAGER_POLL, _POLL = 2.0, 0.001, 0.02


@dataclass(frozen=True, slots=True)
class Checked:
    """A list that validates: its items as they are signed, and their ids."""

    items: tuple[Mapping[str, JsonValue], ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Declared:
    """A declaration that is stored and on its way; `has_spoken`: whether the node has ever said anything."""

    node: str
    serial: int
    has_spoken: bool


@dataclass(frozen=True, slots=True)
class Applied:
    """The node has applied it; `failed` says for each id that failed why."""

    failed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RefusedBy:
    """The node refused the whole of it, and changed nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class StillWaiting:
    """Nothing was heard of it in time; it stays declared, and is applied whenever the node is there."""


Outcome = Applied | RefusedBy | StillWaiting


class _AnyId(Collection[str]):
    """What a node carries isn't known by id: any need may be one, and the node refuses one that isn't."""

    def __contains__(self, id: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def check_document(document: Document, settings: Mapping[str, str], node: str) -> Checked:
    """Fill and validate a list for a node. Refused, with the path to the field, when something is wrong with
    it.
    """
    items = fill_document(document, settings, node)
    for at, item in enumerate(items):
        if "role" in item:
            raise Refused(f"resource[{at}].role: only what a bundle carries has a role; leave it out")
    resources = parse_list(items, Context(_USUAL_STATE), beside=_AnyId())
    check_within(resources)
    check_state_folder(resources, _USUAL_STATE)
    return Checked(tuple(items), tuple(resource.id for resource in resources))


def declare(store: Store, key: SigningKey, name: str, checked: Checked, *, retire: bool, now: float) -> Declared:
    """Sign a checked list for a node and store it, due to be sent.

    Refused for a node that isn't there, and for an empty list without `retire`.
    """
    if not checked.items and not retire:
        raise Refused(
            f"This list is empty, which would remove everything that the mesh assigned to {name}; say --retire if "
            "that is meant."
        )
    with store.transaction():
        node = find_node(store, name)
        retires = retire and not checked.items
        serial = sign(store, key, node, checked.items, checked.ids, retire=retires, now=now)
    return Declared(name, serial, node.last_seen is not None)


def sign_anew(store: Store, key: SigningKey, node: Node, now: float) -> None:
    """Sign a node's wanted content once more under the next serial; to be called inside a transaction."""
    wanted = store.declarations.wanted(node.name)
    if wanted is None:
        return
    declaration = read_declaration(open_declaration(wanted.data))
    items = [Fields(item).values() for item in declaration.items]
    ids = [f"{item['kind']}:{item['name']}" for item in items]
    sign(store, key, node, items, ids, retire=declaration.retire, now=now)


def sign(
    store: Store,
    key: SigningKey,
    node: Node,
    items: Sequence[Mapping[str, JsonValue]],
    ids: Collection[str],
    *,
    retire: bool,
    now: float,
) -> int:
    """Sign and store a node's next declaration, inside a transaction; its serial."""
    serial = next_serial(node)
    if serial > LARGEST_SERIAL:
        raise Refused(f"{node.name} has reported serial {node.reported}, after which there is no other.")
    declaration = Declaration(
        node=node.name,
        serial=serial,
        issued_at=datetime.fromtimestamp(now, timezone.utc),
        items=tuple(items),
        retire=retire,
        recovery=recovery_copy(node.holdings, store.declarations.ids(node.name), node.holdings_serial),
    )
    data = encode_declaration(declaration)
    store.declarations.add(Wanted(node.name, serial, data, key.sign(data), now), key.public, ids)
    return serial


def find_node(store: Store, name: str) -> Node:
    """The node of this name. Refused, with the nearest one, when none has enrolled under it."""
    node = store.nodes.get(name)
    if node is None:
        raise Refused(
            f"There is no node {quoted(name)}{nearest(name, store.nodes.names())}. See `agent control node "
            "list`; a new one joins with a token, which `agent control token create NAME` makes."
        )
    return node


def outcome(node: Node, serial: int, declared: float) -> Applied | RefusedBy | None:
    """What a node has said of a declaration of this serial, stored at `declared`; None while it has said
    nothing.
    """
    if node.reported is not None and node.reported >= serial:
        return Applied(node.failures)
    refusal = node.refusal
    if refusal and (refusal.serial == serial or (refusal.serial is None and refusal.at >= declared)):
        return RefusedBy(refusal.why)
    return None


def wait_for_report(
    store: Store,
    name: str,
    serial: int,
    timeout: float | None,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Wait up to `timeout` seconds (None: without end) for what a node says of a serial that was declared to
    it.
    """
    began = monotonic()
    wanted = store.declarations.wanted(name)
    declared = wanted.declared if wanted else 0.0
    seen = -1
    while True:
        version = store.version()
        if version != seen:
            seen = version
            said = outcome(find_node(store, name), serial, declared)
            if said is not None:
                return said
        waited = monotonic() - began
        if timeout is not None and waited >= timeout:
            return StillWaiting()
        pause(_EAGER_POLL if waited < _EAGER_SECONDS else _POLL)
