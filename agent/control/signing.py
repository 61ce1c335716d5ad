"""The keys that declarations are signed with: one file each, `STATE/control/keys/NUMBER.seed`, 0600, 32 raw
bytes.

Made by `serve` at its first start, durable before anything is signed. The newest counts. One whose file is
lost is not silently replaced: nodes trust the lost one, and would refuse everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from agent.control.store import Signer, Store
from agent.envelope import SEED_BYTES, SigningKey
from agent.errors import Fatal, Refused
from agent.host import directories, files


def ensure_key(state: Path, store: Store, random: Callable[[int], bytes], now: float) -> SigningKey:
    """The newest signing key, made when there has never been one. Fatal when its file is lost or isn't the
    one.
    """
    folder = state / "control" / "keys"
    directories.make(folder, mode=0o700, uid=os.geteuid(), gid=os.getegid())
    known = store.signers.all()
    if known:
        try:
            return _read(folder, known[-1])
        except Refused as error:
            raise Fatal(str(error)) from error
    first = folder / "1.seed"
    seed = files.read(first)
    if seed is None:
        seed = random(SEED_BYTES)
        files.write(first, seed, mode=0o600, uid=os.geteuid(), gid=os.getegid())
    key = SigningKey(seed)
    store.signers.add(Signer(1, key.public), now)
    return key


def current_key(state: Path, store: Store) -> SigningKey:
    """The newest signing key. Refused when there is none, or its file is lost or isn't the one."""
    known = store.signers.all()
    if not known:
        raise Refused("The control plane has no signing key yet; wait until it has started once.")
    return _read(state / "control" / "keys", known[-1])


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
