"""Another signing key in the place of one: made, told to every node, and the old one retired when nobody needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.control.declaring import tell
from agent.control.signing import destroy_key, make_key, read_keyring
from agent.control.store import Signer, Store
from agent.errors import Refused


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key's line in the list. `nodes` are signed for with it; `tokens` are nodes whose tokens name it."""

    number: int
    public_key: bytes
    made: float
    retired: bool
    is_newest: bool
    nodes: tuple[str, ...]
    tokens: tuple[str, ...]


def list_keys(store: Store) -> tuple[KeyRow, ...]:
    """Every key, the newest last."""
    known = store.signers.all()
    return tuple(_row(store, signer, is_newest=signer is known[-1]) for signer in known)


def rotate(state: Path, store: Store, random: Callable[[int], bytes], now: float) -> int:
    """Make the next key and tell every node of it, signed with the one that the node knows; the key's number.

    Refused when a key's file is lost.
    """
    with store.transaction():
        read_keyring(state, store)
        signer = make_key(state, store, random, now)
        _tell(state, store, now)
    return signer.number


def retire(state: Path, store: Store, number: int, now: float, *, force: bool) -> None:
    """Have a key count no more, and tell every node.

    Refused for one that isn't there, for the newest, and, without `force`, while nodes or tokens need it, which are
    named.
    """
    with store.transaction():
        rows = {row.number: row for row in list_keys(store)}
        row = rows.get(number)
        if row is None or row.retired:
            raise Refused(f"There is no key {number} that counts; see `agent control key list`.")
        if row.is_newest:
            raise Refused(f"Key {number} is the newest; `agent control key rotate` makes the next one first.")
        needed = [*row.nodes, *(f"the token for {node}" for node in row.tokens)]
        if needed and not force:
            raise Refused(
                f"Key {number} is still needed by {', '.join(needed)}: what has yet to report under a newer key would "
                "accept nothing more, and have to join again. Wait for it, or say --force."
            )
        store.signers.retire(number)
        _tell(state, store, now)
    destroy_key(state, number)


def _tell(state: Path, store: Store, now: float) -> None:
    keys = read_keyring(state, store)
    for node in store.nodes.all():
        tell(store, keys, node, now)


def _row(store: Store, signer: Signer, *, is_newest: bool) -> KeyRow:
    key = signer.public_key
    return KeyRow(
        number=signer.number,
        public_key=key,
        made=signer.made,
        retired=signer.retired,
        is_newest=is_newest,
        nodes=tuple(node.name for node in store.nodes.all() if node.confirmed == key),
        tokens=tuple(sorted(token.node for token in store.tokens.live() if token.signer == key)),
    )
