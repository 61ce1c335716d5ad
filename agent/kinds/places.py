"""A path as a kind sees it: what is there in one look, and what is changed without touching its content.

- A path is reached directory by directory, as `agent.host.paths` says; something other than what a kind makes is told
  apart by name and never followed or opened.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from agent.errors import Refused, Unavailable
from agent.host import accounts, entries, files, paths
from agent.host.failures import in_words
from agent.resources import Directory, Resource

_CHUNK = 1024 * 1024


class Form(Enum):
    """What a kind makes at a path, in the words of a sentence."""

    FILE = "a file"
    DIRECTORY = "a directory"


@dataclass(frozen=True, slots=True)
class Thing:
    """A file or directory that is there. `mode` is the permission bits; `sha256` is a file's, "" if not asked for."""

    mode: int
    uid: int
    gid: int
    mark: bytes | None
    sha256: str = ""

    def drift(self, mode: int, owner: tuple[int, int]) -> str:
        """How mode and owner, (uid, gid), differ from these, as the end of a sentence; "" if they don't."""
        differences = []
        if self.mode != mode:
            differences.append(f"mode {self.mode:04o}, not {mode:04o}")
        if (self.uid, self.gid) != owner:
            differences.append(f"owner {self.uid}:{self.gid}, not {owner[0]}:{owner[1]}")
        return " and ".join(differences)


@dataclass(frozen=True, slots=True)
class Other:
    """Something else is there; `what` says it for a sentence: "a symbolic link"."""

    what: str


def look(path: Path, form: Form, *, uid: int, digest: bool = False) -> Thing | Other | None:
    """What is at `path`, declared to be of user `uid`'s; None when it, or a directory on the way, is missing.

    `digest` asks for a file's SHA-256; it is read in pieces of 1 MiB. Refused when the way there can't be trusted.
    """
    with in_words("Looking at", path):
        try:
            with paths.parent(path, uid=uid) as (folder, name):
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if not _is(form, mode):
                    return Other(entries.kind(mode))
                descriptor = os.open(name, entries.READ, dir_fd=folder)
        except FileNotFoundError:
            return None
        try:
            return _thing(descriptor, digest=digest)
        finally:
            os.close(descriptor)


def require(path: Path, form: Form, *, uid: int, digest: bool = False) -> Thing | None:
    """What is at `path`, as `look` says; Refused when something other than `form` is there."""
    seen = look(path, form, uid=uid, digest=digest)
    if isinstance(seen, Other):
        raise Refused(f"{path} is {seen.what}, not {form.value}; move it away or choose another path.")
    return seen


def check(path: Path, form: Form, owner: str, earlier: Sequence[Resource]) -> None:
    """Whether a thing of `owner`'s can be put at `path`, counting what the `earlier` resources bring.

    Refused for an owner that is unknown or takes root, a way that can't be trusted and something else in its place;
    Unavailable when there is no directory to put it in: those are declared, never made on the way.
    """
    brings_more = any(one.kind == "package" for one in earlier)
    try:
        uid, _ = accounts.owner_ids(owner)
    except Refused:
        if brings_more:
            return
        raise
    accounts.require_right(owner, uid)
    declared = {one.spec.path for one in earlier if isinstance(one.spec, Directory)}
    folder = path.parent
    if folder in declared:
        return
    if folder != folder.parent and require(folder, Form.DIRECTORY, uid=uid) is None and not brings_more:
        raise Unavailable(f"{folder} is not there, so {path} can't be put there; declare directory:{folder} before it.")
    require(path, form, uid=uid)


def dress(path: Path, *, mode: int, uid: int, gid: int, mark: bytes) -> None:
    """Give the file at `path` its mode, owner and mark without writing its content again.

    Only a file that has other names too is replaced by a copy: those are not ours to change.
    """
    with in_words("Changing", path), _opened(path, uid) as descriptor:
        if os.fstat(descriptor).st_nlink == 1:
            entries.dress(descriptor, mode=mode, uid=uid, gid=gid, mark=mark)
        else:
            files.write(path, _chunks(descriptor), mode=mode, uid=uid, gid=gid, mark=mark)


def unmark(path: Path, *, uid: int) -> None:
    """Take the mark off a file or directory, if it bears one."""
    with in_words("Changing", path), _opened(path, uid) as descriptor:
        entries.unmark(descriptor)


def uid_of(owner: str) -> int:
    """The user id behind USER or USER:GROUP; root's when the machine has no such user any more."""
    try:
        return accounts.owner_ids(owner)[0]
    except Refused:
        return 0


def _thing(descriptor: int, *, digest: bool) -> Thing:
    status = os.fstat(descriptor)
    return Thing(
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        mark=entries.mark(descriptor),
        sha256=_digest(descriptor) if digest else "",
    )


def _is(form: Form, mode: int) -> bool:
    return stat.S_ISREG(mode) if form is Form.FILE else stat.S_ISDIR(mode)


def _digest(descriptor: int) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(descriptor):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, _CHUNK):
        yield chunk


@contextmanager
def _opened(path: Path, uid: int) -> Iterator[int]:
    with paths.parent(path, uid=uid) as (folder, name):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise Refused(f"{path} is {entries.kind(mode)} now; move it away.")
        descriptor = os.open(name, entries.READ, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
