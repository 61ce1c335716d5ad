"""One change of what is arranged for a node, with every declaration that follows from it, inside a transaction.

- It is decided whole before anything is written: a refusal changes nothing.
- Whoever refers to a node's ports or address is declared again when those change there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from agent.control.assigning import Arrangement, Assignment
from agent.control.composing import Composed, Elsewhere, Target, compose, used_references
from agent.control.declaring import Declared, Waits, find_node, items_of, sign
from agent.control.modules import Module
from agent.control.registry import Node, next_serial
from agent.control.signing import Keyring
from agent.control.store import Store
from agent.errors import Refused
from agent.fields import JsonValue

_log = logging.getLogger(__name__)


def change(
    store: Store,
    keys: Keyring,
    name: str,
    alter: Callable[[Arrangement], Arrangement],
    now: float,
    *,
    anyway: bool = False,
) -> Declared | Waits:
    """Alter a node's arrangement and declare what follows from it, there and where it is referred to; inside a
    transaction.

    What is declared already is declared again only if it is to be `anyway`. Refused, with nothing written, when any of
    it can't be.
    """
    pending = _consequences(store, name, alter)
    declared: dict[str, Declared] = {}
    for node, composed in pending.values():
        store.arrangements.save(node.name, composed.arrangement, composed.uses, waits=composed.waits)
        wanted = store.declarations.wanted(node.name)
        is_asked = node.name == name and anyway and (composed.arrangement.own is not None or not composed.waits)
        if is_asked or composed.checked.items != (items_of(wanted) if wanted else ()):
            serial = sign(store, keys, node, composed.checked.items, composed.checked.ids, now=now)
            declared[node.name] = Declared(node.name, serial, node.last_seen is not None)
    first = declared.pop(name, None)
    if first is None:
        node, composed = pending[name]
        if composed.waits or node.wanted == 0:
            return Waits(name)
        first = Declared(name, node.wanted, node.last_seen is not None)
    return replace(first, also=tuple(declared.values()))


def settle(store: Store, keys: Keyring, name: str, now: float) -> None:
    """Declare what waited for a node's first report, or has come to differ by its address or what it carries; inside a
    transaction. What can't be declared is logged, and tried again at the next report while it waits.
    """
    if store.arrangements.get(name) == Arrangement() and not store.arrangements.users_of(name):
        return
    try:
        change(store, keys, name, lambda before: before, now)
    except Refused as error:
        _log.warning("What is arranged for %s can't be declared yet: %s", name, error)


def _consequences(
    store: Store, name: str, alter: Callable[[Arrangement], Arrangement]
) -> dict[str, tuple[Node, Composed]]:
    """The node's new list, and those of all nodes that refer to it, directly or over others."""
    pending: dict[str, tuple[Node, Composed]] = {}
    queue = deque([name])
    while queue:
        node = find_node(store, queue.popleft())
        before = store.arrangements.get(node.name)
        after = alter(before) if node.name == name else before
        arrangements = {other: composed.arrangement for other, (_, composed) in pending.items()}
        try:
            composed = compose_for(store, node, before, after, arrangements)
        except Refused as error:
            if node.name == name:
                raise
            raise Refused(f"{node.name} refers to {name}, and could not be declared any more: {error}") from error
        pending[node.name] = node, composed
        queue.extend(
            user for user in store.arrangements.users_of(node.name) if user not in pending and user not in queue
        )
    return pending


def compose_for(
    store: Store, node: Node, before: Arrangement, after: Arrangement, pending: Mapping[str, Arrangement]
) -> Composed:
    """What `after` would come to on a node; `pending` are other nodes' arrangements that aren't stored yet."""
    modules = {(one.module, one.version): _module(store, one) for one in after.assignments}
    target = Target(
        node=node,
        next_serial=next_serial(node),
        declared={id for id, serial in store.declarations.ids(node.name).items() if serial == node.wanted},
        range=store.settings.port_range,
        modules=modules,
    )
    elsewhere = Elsewhere()
    used = used_references(after, modules)
    if used:
        elsewhere = Elsewhere(
            addresses={one.name: _address(one.profile) for one in store.nodes.all()},
            arrangements={**store.arrangements.all(), **pending},
            used=used,
        )
    return compose(before, after, target, elsewhere)


def _module(store: Store, assignment: Assignment) -> Module:
    version = store.modules.get(assignment.module, assignment.version)
    if version is None:
        raise Refused(
            f"The assignment {assignment.name} was of version {assignment.version} of the module {assignment.module}, "
            "which has been removed."
        )
    return version.module


def _address(profile: Mapping[str, JsonValue]) -> str | None:
    address = profile.get("address")
    return address if isinstance(address, str) and address else None
