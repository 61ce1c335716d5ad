"""Files of the machine, as resources and as the agent's own state need them.

- A file is written whole beside its place, fsynced, renamed, its folder fsynced: it is the old or the new.
- Every path is reached as `paths` does it; `uid` is everywhere the declared owner (root, if nothing is said).
- An existing file is replaced, never changed in place: it may be a hard link to somebody else's.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from agent.host import entries, paths, temporary
from agent.host.failures import in_words

_CHUNK = 1024 * 1024
# linux/fs.h: have the same blocks as another file, until either is written to.
_FICLONE = 0x40049409


def read(path: Path, *, uid: int = 0) -> bytes | None:
    """The content of a file, None when it is absent; Refused when something else is there."""
    with in_words("Reading", path):
        try:
            return b"".join(_chunks(path, uid))
        except FileNotFoundError:
            return None


def chunks(path: Path, *, uid: int = 0) -> Iterator[bytes]:
    """The content of a file in pieces of 1 MiB; Unavailable when absent, Refused when it is something else."""
    with in_words("Reading", path):
        yield from _chunks(path, uid)


def write(
    path: Path,
    content: bytes | Iterable[bytes],
    *,
    mode: int,
    uid: int,
    gid: int,
    mark: bytes | None = None,
) -> None:
    """Makes `path` a file of this content, mode, owner and, when given, mark; its parent must exist.

    On any failure the previous file is as it was: Unavailable for what may pass (a full disk), Refused when
    something other than a file is there or the way can't be trusted.
    """

    def fill(descriptor: int) -> None:
        for chunk in [content] if isinstance(content, bytes) else content:
            _write_all(descriptor, chunk)

    with in_words("Writing", path):
        _put(path, fill, mode=mode, uid=uid, gid=gid, mark=mark)


def copy(source: Path, path: Path, *, mode: int, uid: int, gid: int) -> None:
    """Makes `path` a copy of the file `source`, as `write` does; where the file system can, they share their blocks.

    Neither notices when the other is changed.
    """
    with in_words("Copying", source), source.open("rb") as stream:

        def fill(descriptor: int) -> None:
            try:
                fcntl.ioctl(descriptor, _FICLONE, stream.fileno())
            except OSError:  # Another file system, or one that shares nothing: byte by byte.
                while chunk := stream.read(_CHUNK):
                    _write_all(descriptor, chunk)

        _put(path, fill, mode=mode, uid=uid, gid=gid)


def move(source: Path, path: Path, *, uid: int = 0) -> None:
    """Gives a file another place on the same file system, where it replaces what is there, durably."""
    with (
        in_words("Moving", source),
        paths.parent(source, uid=uid) as (before, name),
        paths.parent(path, uid=uid) as (folder, new_name),
    ):
        with suppress(FileNotFoundError):
            entries.require_file(folder, new_name, path)
        os.rename(name, new_name, src_dir_fd=before, dst_dir_fd=folder)
        paths.sync(folder)
        paths.sync(before)


def remove(path: Path, *, uid: int = 0) -> bool:
    """Removes a file; says whether there was one. Refused when something other than a file is there."""
    with in_words("Removing", path):
        try:
            with paths.parent(path, uid=uid) as (folder, name):
                temporary.clean(folder)
                entries.require_file(folder, name, path)
                os.unlink(name, dir_fd=folder)
                paths.sync(folder)
        except FileNotFoundError:
            return False
        return True


def _put(path: Path, fill: Callable[[int], None], *, mode: int, uid: int, gid: int, mark: bytes | None = None) -> None:
    """Have `fill` write a new file, and put that in its place."""
    with paths.parent(path, uid=uid) as (folder, name):
        with suppress(FileNotFoundError):
            entries.require_file(folder, name, path)
        temporary.clean(folder)
        with temporary.create(folder) as (descriptor, temporary_name):
            fill(descriptor)
            entries.dress(descriptor, mode=mode, uid=uid, gid=gid, mark=mark)
            os.rename(temporary_name, name, src_dir_fd=folder, dst_dir_fd=folder)
        paths.sync(folder)


def _chunks(path: Path, uid: int) -> Iterator[bytes]:
    with paths.parent(path, uid=uid) as (folder, name):
        entries.require_file(folder, name, path)
        yield from _chunks_at(folder, name)


def _chunks_at(folder: int, name: str) -> Iterator[bytes]:
    descriptor = os.open(name, entries.READ, dir_fd=folder)
    try:
        while chunk := os.read(descriptor, _CHUNK):
            yield chunk
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
