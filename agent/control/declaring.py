"""From a checked list to a signed declaration, and from that to what the node says of it.

- What a node alone can know (what it carries, what it can do) is its own to refuse, in words that come back.
- A serial is one more than all that was stored or reported. Signing and storing are one transaction; sending
  is the service's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from agent.control.registry import Node, next_serial, recovery_copy
from agent.control.sealing import resealed
from agent.control.signing import Keyring
from agent.control.store import Store, Wanted
from agent.errors import Refused
from agent.fields import Fields, JsonValue, nearest, quoted
from agent.resources import (
    Declaration,
    encode_declaration,
    open_declaration,
    read_declaration,
)
from agent.resources.declaration import LARGEST_SERIAL

# Asking SQLite whether anything changed costs some microseconds: often at first, since most answers come at once.
_EAGER_SECONDS, _EAGER_POLL, _POLL = 2.0, 0.001, 0.02

# The broker takes messages of 16 MiB (the bundle's max_message_size); base64 makes four bytes of three.
LARGEST_DECLARATION = 11 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Declared:
    """A declaration that is stored and on its way; `has_spoken`: whether the node has said anything yet.

    `also` are those of other nodes, which refer to what changed there.
    """

    node: str
    serial: int
    has_spoken: bool
    also: tuple[Declared, ...] = ()


@dataclass(frozen=True, slots=True)
class Waits:
    """Nothing is declared yet: what is assigned waits for the node's first report, which says what it carries."""

    node: str


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


def sign_anew(store: Store, keys: Keyring, node: Node, now: float) -> None:
    """Sign a node's wanted content once more under the next serial; to be called inside a transaction.

    What is sealed in it is so for the key that the node has now.
    """
    wanted = store.declarations.wanted(node.name)
    if wanted is None:
        return
    declaration = read_declaration(open_declaration(wanted.data))
    items = resealed(store, node, _items(declaration))
    ids = [f"{item['kind']}:{item['name']}" for item in items]
    sign(store, keys, node, items, ids, retire=declaration.retire, now=now)


def tell(store: Store, keys: Keyring, node: Node, now: float) -> None:
    """Have a node know which keys and pins count: its wanted content once more, else an empty list; inside a
    transaction.

    A node that holds something of which this store knows nothing (of a life before) refuses the empty one, because that
    doesn't say that it means to remove it.
    """
    if node.wanted:
        sign_anew(store, keys, node, now)
    else:
        sign(store, keys, node, (), (), retire=False, now=now)


def sign_for_its_key(store: Store, keys: Keyring, node: Node, now: float) -> None:
    """Sign it once more if what is sealed in it is for another key than the node has now; inside a transaction."""
    wanted = store.declarations.wanted(node.name)
    items = items_of(wanted) if wanted else ()
    if items != resealed(store, node, items):
        sign_anew(store, keys, node, now)


def items_of(wanted: Wanted) -> tuple[dict[str, JsonValue], ...]:
    """The resources that a stored declaration holds, as they were signed."""
    return _items(read_declaration(open_declaration(wanted.data)))


def sign(
    store: Store,
    keys: Keyring,
    node: Node,
    items: Sequence[Mapping[str, JsonValue]],
    ids: Collection[str],
    *,
    retire: bool = True,
    now: float,
) -> int:
    """Sign and store a node's next declaration, inside a transaction; its serial. With `retire` an empty list says that
    it means to remove everything.
    """
    serial = next_serial(node)
    if serial > LARGEST_SERIAL:
        raise Refused(f"{node.name} has reported serial {node.reported}, after which there is no other.")
    declaration = Declaration(
        node=node.name,
        serial=serial,
        issued_at=datetime.fromtimestamp(now, timezone.utc),
        items=tuple(items),
        retire=retire and not items,
        trust=keys.trust,
        recovery=recovery_copy(node.holdings, store.declarations.ids(node.name), node.holdings_serial),
    )
    data = encode_declaration(declaration)
    if len(data) > LARGEST_DECLARATION:
        raise Refused(
            f"The list for {node.name} has {len(data) >> 20} MiB, and a declaration carries at most "
            f"{LARGEST_DECLARATION >> 20}: leave big files to a bundle, an image or a package."
        )
    key = keys.key_for(node)
    wanted = Wanted(node.name, serial, data, key.sign(data), now)
    store.declarations.add(wanted, key.public, ids, offers=keys.newest.public)
    store.arrangements.keep(node.name, serial)
    return serial


def find_node(store: Store, name: str) -> Node:
    """The node of this name. Refused, with the nearest one, when none has enrolled under it."""
    node = store.nodes.get(name)
    if node is None:
        hint = nearest(name, store.nodes.names()) or "."
        raise Refused(
            f"There is no node {quoted(name)}{hint} See `agent control node list`; a new one joins with a token, which "
            "`agent control token create NAME` makes."
        )
    return node


def outcome(node: Node, serial: int, declared: float) -> Applied | RefusedBy | None:
    """What a node has said of a declaration of this serial, stored at `declared`; None while it has said
    nothing.
    """
    if node.holds is not None and node.holds >= serial:
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


def _items(declaration: Declaration) -> tuple[dict[str, JsonValue], ...]:
    return tuple(Fields(item).values() for item in declaration.items)
