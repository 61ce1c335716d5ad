"""Files that are being written beside their place, and what a write that was cut short has left of them.

- One that is being written is locked; one that nobody locks is a left-over.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PREFIX = ".mesh-agent."
_SUFFIX = ".tmp"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def create(folder: int) -> Iterator[tuple[int, str]]:
    """(descriptor, name) of a new, empty 0600 file in `folder`; gone afterwards unless it was renamed."""
    name = f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
    descriptor = os.open(name, _CREATE, 0o600, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor, name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        os.close(descriptor)


def clean(folder: int) -> None:
    """Removes the left-overs in `folder`; one that can't be removed now is left to the next time."""
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        names = os.listdir(readable)
    finally:
        os.close(readable)
    for name in names:
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
            with suppress(OSError):
                _remove_unlocked(folder, name)


def _remove_unlocked(folder: int, name: str) -> None:
    descriptor = os.open(name, _OPEN, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
    finally:
        os.close(descriptor)
