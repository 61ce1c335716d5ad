"""The mesh's secrets on their way to a node: each sealed for that node's key, so that nobody else can read it.

Sealing the same twice gives two boxes. So one is kept for each value and key and used again: a list in which nothing
changed is the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agent.control.parts import secret_item
from agent.control.registry import Node
from agent.control.store import Store
from agent.envelope import seal
from agent.errors import Refused
from agent.fields import JsonValue


def sealed_for(store: Store, node: Node, names: Collection[str], *, keep: bool = True) -> dict[str, bytes]:
    """Those of these secrets that the mesh has, each sealed for a node's key, by name.

    What is sealed anew is kept, for which this has to be inside a transaction, unless it is only looked at. Refused
    when the node's key is none that can be sealed for.
    """
    boxes = {}
    for name in sorted(names):
        secret = store.secrets.get(name)
        if secret is None:
            continue
        box = store.secrets.sealed(secret, node.name, node.public_key)
        if box is None:
            try:
                box = seal(node.public_key, secret.value.encode("utf-8"))
            except Refused as error:
                raise Refused(
                    f"The secret {name} can't be sent to {node.name}: {error}; that node has to join again."
                ) from error
            if keep:
                store.secrets.keep_sealed(secret, node.name, node.public_key, box)
        boxes[name] = box
    return boxes


def resealed(store: Store, node: Node, items: Collection[Mapping[str, JsonValue]]) -> tuple[dict[str, JsonValue], ...]:
    """The same list, with what the mesh sends in it as it is now, for the key that the node has now."""
    boxes = sealed_for(store, node, {str(item["name"]) for item in items if "sealed" in item})
    return tuple(
        {**item, **secret_item(str(item["name"]), boxes[str(item["name"])])}
        if "sealed" in item and item["name"] in boxes
        else dict(item)
        for item in items
    )


def unsealed(items: Collection[Mapping[str, JsonValue]]) -> tuple[dict[str, JsonValue], ...]:
    """The same list without what is sealed in it: what its author arranged."""
    return tuple({key: value for key, value in item.items() if key != "sealed"} for item in items)
