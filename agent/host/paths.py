"""Reaching a file directory by directory, so that nobody else can lead a write elsewhere.

- No symbolic link is followed on the way.
- Every directory on the way belongs to root, to the file's declared owner or to this program's own user.
- None can be written by somebody else, unless it is the declared owner's own. A sticky directory (/tmp) is
  passed through, because nobody else can move a trusted user's directory in it; but it is no parent.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.errors import Refused

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def parent(path: Path, *, uid: int) -> Iterator[tuple[int, str]]:
    """(descriptor of the parent directory, name in it) of a file whose declared owner is `uid`.

    Refused when the way there can't be trusted; FileNotFoundError, naming the directory, when it ends early.
    The descriptor is an O_PATH one: good as a `dir_fd` only.
    """
    if not path.is_absolute() or ".." in path.parts or not path.name:
        raise Refused(f"{path} is not an absolute path of a file without '..'.")
    descriptor = os.open("/", _DIRECTORY)
    parts = path.parts
    try:
        # `parts[:at]` is where the descriptor is; as a path it is only needed to say what is wrong there.
        for at in range(1, len(parts) - 1):
            _check(descriptor, parts[:at], uid, passing=True)
            child = _step(descriptor, parts[: at + 1])
            os.close(descriptor)
            descriptor = child
        _check(descriptor, parts[:-1], uid, passing=False)
        yield descriptor, path.name
    finally:
        os.close(descriptor)


def sync(folder: int) -> None:
    """Makes what happened to the names in the directory `folder` (a descriptor) durable."""
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(readable)
    finally:
        os.close(readable)


def _step(descriptor: int, parts: tuple[str, ...]) -> int:
    name = parts[-1]
    try:
        return os.open(name, _DIRECTORY, dir_fd=descriptor)
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(Path(*parts))) from error
    except NotADirectoryError as error:
        here = Path(*parts)
        if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
            target = os.readlink(name, dir_fd=descriptor)
            raise Refused(f"{here} is a symbolic link (to {target}); name the path without it.") from error
        raise Refused(f"{here} is not a directory.") from error


def _check(descriptor: int, parts: tuple[str, ...], uid: int, *, passing: bool) -> None:
    status = os.fstat(descriptor)
    if status.st_uid and status.st_uid in (uid, os.geteuid()):
        return
    if status.st_uid != 0:
        raise Refused(
            f"{Path(*parts)} belongs to user {status.st_uid}, who could replace what is put there; "
            "choose another place or declare that user as the owner."
        )
    if passing and status.st_mode & stat.S_ISVTX:
        return
    group_writes = status.st_mode & stat.S_IWGRP and status.st_gid != 0
    if group_writes or status.st_mode & stat.S_IWOTH:
        here = Path(*parts)
        # A sticky one is everybody's on purpose, as /tmp is.
        advice = "" if status.st_mode & stat.S_ISVTX else f" or take that right away (chmod go-w {here})"
        raise Refused(
            f"{here} can be written by other users, who could replace what is put there; choose another place{advice}."
        )
