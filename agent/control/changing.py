"""One change of what is arranged for a node, with every declaration that follows from it, inside a transaction.

- It is decided whole before anything is written: a refusal changes nothing.
- Whoever refers to a node's ports or address is declared again when those change there, and whoever uses one of the
  mesh's secrets when that changes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from agent.control import bounds
from agent.control.assigning import Arrangement, Assignment
from agent.control.composing import Composed, Elsewhere, Target, compose, named_secrets, used_references
from agent.control.declaring import Declared, Waits, find_node, items_of, sign, sign_for_its_key
from agent.control.modules import Module
from agent.control.parts import Secrets
from agent.control.registry import Node, next_serial
from agent.control.sealing import sealed_for
from agent.control.signing import Keyring
from agent.control.store import Store
from agent.errors import Refused

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
    pending = _consequences(store, (name,), alter, lambda node: f"refers to {name}" if node != name else None)
    declared = _declare(store, keys, pending, now, anyway=name if anyway else None)
    first = declared.pop(name, None)
    if first is None:
        node, composed = pending[name]
        if composed.waits or node.wanted == 0:
            return Waits(name)
        first = Declared(name, node.wanted, node.has_spoken)
    return replace(first, also=tuple(declared.values()))


def change_secret(store: Store, keys: Keyring, name: str, now: float) -> tuple[Declared, ...]:
    """Declare what follows from another value of a secret of the mesh to all who use it; inside a transaction.

    Refused, with nothing written, when any of it can't be declared.
    """
    users = tuple(store.arrangements.users_of_secret(name))
    blame = f"uses the mesh's secret {name}"
    pending = _consequences(store, users, lambda before: before, lambda _: blame)
    return tuple(_declare(store, keys, pending, now).values())


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
        with suppress(Refused):  # for a key that is none nothing can be sealed either
            sign_for_its_key(store, keys, find_node(store, name), now)


def _declare(
    store: Store, keys: Keyring, pending: Mapping[str, tuple[Node, Composed]], now: float, *, anyway: str | None = None
) -> dict[str, Declared]:
    """Write it all down, and sign for every node whose list has changed, and for the one that asks for it `anyway`."""
    declared: dict[str, Declared] = {}
    for node, composed in pending.values():
        store.arrangements.save(node.name, composed.arrangement, composed.uses, composed.secrets, waits=composed.waits)
        wanted = store.declarations.wanted(node.name)
        is_asked = node.name == anyway and (composed.arrangement.own is not None or not composed.waits)
        if is_asked or composed.checked.items != (items_of(wanted) if wanted else ()):
            serial = sign(store, keys, node, composed.checked.items, composed.checked.ids, now=now)
            declared[node.name] = Declared(node.name, serial, node.has_spoken)
    return declared


def _consequences(
    store: Store,
    names: Collection[str],
    alter: Callable[[Arrangement], Arrangement],
    involved: Callable[[str], str | None],
) -> dict[str, tuple[Node, Composed]]:
    """These nodes' new lists, and those of all nodes that refer to them, directly or over others.

    `involved` says how a node comes into it; None for one that is asked for itself.
    """
    pending: dict[str, tuple[Node, Composed]] = {}
    queue = deque(names)
    while queue:
        node = find_node(store, queue.popleft())
        before = store.arrangements.get(node.name)
        after = alter(before) if node.name in names else before
        arrangements = {other: composed.arrangement for other, (_, composed) in pending.items()}
        try:
            composed = compose_for(store, node, before, after, arrangements)
        except Refused as error:
            how = involved(node.name)
            if how is None:
                raise
            raise Refused(f"{node.name} {how}, and could not be declared any more: {error}") from error
        pending[node.name] = node, composed
        queue.extend(
            user for user in store.arrangements.users_of(node.name) if user not in pending and user not in queue
        )
    return pending


def compose_for(
    store: Store,
    node: Node,
    before: Arrangement,
    after: Arrangement,
    pending: Mapping[str, Arrangement],
    *,
    keep: bool = True,
) -> Composed:
    """What `after` would come to on a node; `pending` are other nodes' arrangements that aren't stored yet.

    What has to be sealed for it is kept, inside a transaction, unless it is only asked for.
    """
    modules = {(one.module, one.version): _module(store, one) for one in after.assignments}
    named = named_secrets(after, modules)
    target = Target(
        node=node,
        next_serial=next_serial(node),
        declared=declared_ids(store, node),
        range=store.settings.port_range,
        modules=modules,
        secrets=Secrets(store.secrets.names(), sealed_for(store, node, named, keep=keep)) if named else Secrets(),
    )
    elsewhere = Elsewhere()
    used = used_references(after, modules)
    if used:
        elsewhere = Elsewhere(
            addresses={one.name: bounds.address(one.profile.get("address")) for one in store.nodes.all()},
            arrangements={**store.arrangements.all(), **pending},
            used=used,
        )
    return compose(before, after, target, elsewhere)


def declared_ids(store: Store, node: Node) -> frozenset[str]:
    """The ids that a node's newest declaration holds."""
    return frozenset(id for id, serial in store.declarations.ids(node.name).items() if serial == node.wanted)


def _module(store: Store, assignment: Assignment) -> Module:
    version = store.modules.get(assignment.module, assignment.version)
    if version is None:
        raise Refused(
            f"The assignment {assignment.name} was of version {assignment.version} of the module {assignment.module}, "
            "which has been removed."
        )
    return version.module
