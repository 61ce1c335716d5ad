"""One entry of a safely reached directory: its kind, its owner and mode, and the mark that says it is ours.

- A mark is an extended attribute that only root can set and read; file systems without them hold none.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from agent.errors import Refused

_MARK = "trusted.mesh-agent"
_NO_MARK = {errno.ENODATA, errno.ENOTSUP}
# O_NONBLOCK: a named pipe put there in the meantime must not make an open wait.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def mark(descriptor: int) -> bytes | None:
    """The mark of an open file or directory; None when it has none or can't have one."""
    try:
        return os.getxattr(descriptor, _MARK)
    except OSError as error:
        if error.errno in _NO_MARK:
            return None
        raise


def unmark(descriptor: int) -> None:
    """Takes the mark off an open file or directory, durably, if it bears one."""
    try:
        os.removexattr(descriptor, _MARK)
    except OSError as error:
        if error.errno not in {*_NO_MARK, errno.EPERM}:
            raise
    os.fsync(descriptor)


def dress(descriptor: int, *, mode: int, uid: int, gid: int, mark: bytes | None) -> None:
    """Gives an open file or directory its owner, mode and mark, durably."""
    # What is so already isn't written again: each change, even of nothing, costs the disk a turn.
    status = os.fstat(descriptor)
    # The owner comes first: changing it clears the set-user-id bits of the mode.
    if (status.st_uid, status.st_gid) != (uid, gid):
        os.fchown(descriptor, uid, gid)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        os.fchmod(descriptor, mode)
    if mark is not None:
        _set_mark(descriptor, mark)
    os.fsync(descriptor)


def require_file(folder: int, name: str, path: Path) -> None:
    """Refused when the entry is something other than a regular file; FileNotFoundError when it is absent."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if not stat.S_ISREG(mode):
        _refuse(path, mode, "a file")


@contextmanager
def open_directory(folder: int, name: str, path: Path) -> Iterator[int]:
    """A descriptor of the directory `name`; Refused when it is something else."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(mode):
        _refuse(path, mode, "a directory")
    descriptor = os.open(name, READ | os.O_DIRECTORY, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def kind(mode: int) -> str:
    """What a file of this `st_mode` is, for a sentence."""
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a directory",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFSOCK: "a socket",
        stat.S_IFIFO: "a named pipe",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def _set_mark(descriptor: int, value: bytes) -> None:
    try:
        os.setxattr(descriptor, _MARK, value)
    except OSError as error:
        # EPERM: a container's root, which lacks CAP_SYS_ADMIN.
        if error.errno not in {errno.ENOTSUP, errno.EPERM}:
            raise


def _refuse(path: Path, mode: int, wanted: str) -> NoReturn:
    raise Refused(f"{path} is {kind(mode)}, not {wanted}; move it away or choose another path.")
