"""The keys that declarations are signed with: one file each, `STATE/control/keys/NUMBER.seed`, 0600, 32 raw
bytes.

- The first is made by `serve` at its first start, durable before anything is signed; another by a rotation. One whose
  file is lost is not silently replaced: nodes trust the lost one, and would refuse everything.
- Each node is signed for with the newest key that it has confirmed by a report, and is told in every declaration which
  keys count. So it hears of the next key from one it trusts, however long it was away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.control.registry import Node
from agent.control.store import Signer, Store
from agent.envelope import SEED_BYTES, SigningKey
from agent.errors import Fatal, Refused
from agent.host import directories, files
from agent.resources import Trust


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys that count, the newest last; `rotated`: there were others before, of which nodes may know.

    `pins` are what nodes are told to know the broker by; empty while it never had but one certificate.
    """

    keys: tuple[SigningKey, ...]
    rotated: bool = False
    pins: tuple[str, ...] = ()

    @property
    def newest(self) -> SigningKey:
        return self.keys[-1]

    @property
    def trust(self) -> Trust | None:
        """What nodes are told of keys and pins; None while all is as their tokens said."""
        signers = tuple(key.public for key in self.keys) if self.rotated else ()
        return Trust(signers, self.pins) if signers or self.pins else None

    def key_for(self, node: Node) -> SigningKey:
        """The key to sign with for a node. One that trusts none of ours gets the newest, and has to join again."""
        return next((key for key in self.keys if key.public == node.confirmed), self.newest)


def ensure_key(state: Path, store: Store, random: Callable[[int], bytes], now: float) -> None:
    """Make a signing key when there has never been one, and take away what is left of retired ones. Fatal when the file
    of one that counts is lost or isn't its.
    """
    _keys_folder(state)
    known = store.signers.all()
    if known:
        serving_keyring(state, store)
        for signer in known:
            if signer.retired:
                destroy_key(state, signer.number)
    else:
        _make(state, store, 1, random, now)


def make_key(state: Path, store: Store, random: Callable[[int], bytes], now: float) -> Signer:
    """Make another key, which is the newest from now on; inside a transaction."""
    return _make(state, store, store.signers.all()[-1].number + 1, random, now)


def destroy_key(state: Path, number: int) -> None:
    """Take a retired key's file away."""
    files.remove(_keys_folder(state) / f"{number}.seed")


def read_keyring(state: Path, store: Store) -> Keyring:
    """The keys that count. Refused when there are none, or the file of one is lost or isn't its."""
    known = store.signers.all()
    if not known:
        raise Refused("The control plane has no signing key yet; wait until it has started once.")
    folder = state / "control" / "keys"
    keys = tuple(_read(folder, signer) for signer in known if not signer.retired)
    return Keyring(keys, rotated=len(known) > 1, pins=store.settings.pins)


def serving_keyring(state: Path, store: Store) -> Keyring:
    """As `read_keyring`, for who can't go on without. Fatal instead of Refused."""
    try:
        return read_keyring(state, store)
    except Refused as error:
        raise Fatal(str(error)) from error


def _make(state: Path, store: Store, number: int, random: Callable[[int], bytes], now: float) -> Signer:
    path = _keys_folder(state) / f"{number}.seed"
    # One whose making was cut short is taken up: nothing was signed with it.
    seed = files.read(path)
    if seed is None:
        seed = random(SEED_BYTES)
        files.write(path, seed, mode=0o600, uid=os.geteuid(), gid=os.getegid())
    signer = Signer(number, SigningKey(seed).public, now)
    store.signers.add(signer)
    return signer


def _keys_folder(state: Path) -> Path:
    folder = state / "control" / "keys"
    directories.make(folder, mode=0o700, uid=os.geteuid(), gid=os.getegid())
    return folder


def _read(folder: Path, signer: Signer) -> SigningKey:
    path = folder / f"{signer.number}.seed"
    seed = files.read(path)
    if seed is None:
        raise Refused(f"The signing key {path} is lost; put it back from a backup of the control plane.")
    if len(seed) != SEED_BYTES or SigningKey(seed).public != signer.public_key:
        raise Refused(
            f"{path} does not hold the key that nodes were told to trust; put it back from a backup of the "
            "control plane."
        )
    return SigningKey(seed)
