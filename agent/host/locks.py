"""One holder at a time: a file lock that ends with its process, however that ends, and names it meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.errors import Unavailable
from agent.host import processes
from agent.host.failures import in_words
from agent.host.processes import Process


class Held(Unavailable):
    """The lock is another process's; `holder` is None when that one can't be seen from here."""

    def __init__(self, path: Path, holder: Process | None) -> None:
        by = f"process {holder.pid} ({processes.command(holder.pid)})" if holder else "another process"
        super().__init__(f"{path} is held by {by}; wait for it to end, or stop it.")
        self.path = path
        self.holder = holder


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Holds the lock `path` (made 0600 when absent) for the block; Held at once when another has it."""
    with in_words("Locking", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with in_words("Locking", path):
            _lock(descriptor, path)
        try:
            yield
        finally:
            # The file stays: removing a lock lets two processes hold two files of one name.
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path) -> Process | None:
    """The living process that holds the lock `path`, None when nobody does; the lock isn't touched."""
    with in_words("Reading", path):
        try:
            words = path.read_text("ascii", "replace").split()
        except FileNotFoundError:
            return None
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    process = Process(int(words[0]), int(words[1]))
    return process if processes.is_alive(process) else None


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Held(path, holder(path)) from error
    me = processes.current()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{me.pid} {me.started}\n".encode(), 0)
