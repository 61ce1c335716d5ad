"""Directories of the machine: made, emptied and removed through a safely reached parent (`paths`).

- `uid` is everywhere the declared owner (root, where nothing is said).
- What a write that was cut short has left in a directory doesn't count as its content.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

from agent.host import entries, paths, temporary
from agent.host.failures import in_words


def make(path: Path, *, mode: int, uid: int, gid: int, mark: bytes | None = None) -> bool:
    """Makes `path` a directory; says whether it had to be made. Its parent must exist.

    One that exists gets the mode, owner and, when given, mark; Refused when something else is there.
    """
    with in_words("Making directory", path), paths.parent(path, uid=uid) as (folder, name):
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
            made = True
        except FileExistsError:
            made = False
        with entries.open_directory(folder, name, path) as descriptor:
            entries.dress(descriptor, mode=mode, uid=uid, gid=gid, mark=mark)
        paths.sync(folder)
        return made


def remove(path: Path, *, uid: int = 0) -> bool:
    """Removes an empty or absent directory; False when it holds something and was left."""
    with in_words("Removing directory", path):
        try:
            with paths.parent(path, uid=uid) as (folder, name):
                with entries.open_directory(folder, name, path) as descriptor:
                    temporary.clean(descriptor)
                os.rmdir(name, dir_fd=folder)
                paths.sync(folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return False
            raise
        return True


def remove_tree(path: Path, *, uid: int = 0) -> None:
    """Removes a directory and all in it, following no link; Unavailable at a mount point inside."""
    with in_words("Removing directory", path):
        try:
            with paths.parent(path, uid=uid) as (folder, name):
                with entries.open_directory(folder, name, path) as descriptor:
                    _empty(descriptor)
                os.rmdir(name, dir_fd=folder)
                paths.sync(folder)
        except FileNotFoundError:
            return


def _empty(top: int) -> None:
    device = os.fstat(top).st_dev
    for _, directories, others, folder in os.fwalk(".", topdown=False, onerror=_raise, dir_fd=top):
        if os.fstat(folder).st_dev != device:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        for name in others:
            os.unlink(name, dir_fd=folder)
        for name in directories:
            try:
                os.rmdir(name, dir_fd=folder)
            except NotADirectoryError:  # A link to a directory is listed among them.
                os.unlink(name, dir_fd=folder)


def _raise(error: OSError) -> NoReturn:
    raise error
