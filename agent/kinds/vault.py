"""Where secrets and keys lie: `secrets/OWNER/` in the state folder, 0700 and the owner's.

- Only this agent puts anything there, so what is there is ours, whatever mark it bears.
- What is made once is kept when its resource is dropped: data made under it may need it again.
- What the mesh sealed for this node is opened with the node's own key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from agent.envelope import SigningKey
from agent.errors import Refused, Unavailable
from agent.host import accounts, directories, files
from agent.kinds import places
from agent.kinds.places import Form, Thing
from agent.resources import Resource

FOLDER_MODE = 0o700


def check_owner(owner: str, earlier: Sequence[Resource]) -> None:
    """Refused for an owner that takes root, or that is unknown while no earlier package may bring it."""
    try:
        uid, _ = accounts.owner_ids(owner)
    except Refused:
        if not any(one.kind == "package" for one in earlier):
            raise
        return
    accounts.require_right(owner, uid)


def look_at_folder(path: Path) -> Thing | None:
    """The owner's folder that `path` lies in; None when it isn't there yet."""
    return places.require(path.parent, Form.DIRECTORY, uid=os.geteuid())


def look(path: Path, folder: Thing | None, *, digest: bool = False) -> Thing | None:
    """The file at `path`, in a folder seen before; None when it isn't there."""
    return None if folder is None else places.require(path, Form.FILE, uid=folder.uid, digest=digest)


def folder_drift(folder: Thing | None, owner: tuple[int, int]) -> str:
    """How the folder isn't as wanted, as the end of a sentence; "" when it is. Its group is nobody's concern: 0700."""
    if folder is None:
        return ""
    drift = folder.drift(FOLDER_MODE, (owner[0], folder.gid))
    return f"of its folder: {drift}" if drift else ""


def read(path: Path) -> bytes | None:
    """The content of the file at `path`; None when it isn't there."""
    folder = look_at_folder(path)
    return None if folder is None else files.read(path, uid=folder.uid)


def unseal(box: bytes, state: Path) -> bytes | None:
    """What the mesh sealed for this node's own key, which is read for it and kept nowhere else; None for another's."""
    seed = files.read(state / "identity" / "signing.seed", uid=os.geteuid())
    return None if seed is None else SigningKey(seed).unseal(box)


def make_folder(path: Path, owner: tuple[int, int]) -> None:
    """Make the folder that `path` lies in, or set its mode and owner right."""
    uid, gid = owner
    directories.make(path.parent.parent, mode=0o711, uid=os.geteuid(), gid=os.getegid())
    directories.make(path.parent, mode=FOLDER_MODE, uid=uid, gid=gid)


def remove(paths: Sequence[Path]) -> None:
    """Remove these files, which lie in one folder, and the folder with the last of its files."""
    folder = look_at_folder(paths[0])
    if folder is None:
        return
    for path in paths:
        files.remove(path, uid=folder.uid)
    directories.remove(paths[0].parent, uid=os.geteuid())


def lost(resource: Resource, path: Path) -> Unavailable:
    """The failure of what was made once and is not there any more."""
    remake = f"make it anew with `agent up --remake {resource.id}`"
    elsewhere = next(path.parent.parent.glob(f"*/{path.name}"), None)
    if elsewhere:
        return Unavailable(
            f"The {resource.kind} {resource.name} was made for another owner, at {elsewhere}; "
            f"move it to {path}, or {remake}."
        )
    return Unavailable(
        f"The {resource.kind} {resource.name} that was made here is lost: {path} is not there; "
        f"put it back from a copy, or {remake}."
    )
