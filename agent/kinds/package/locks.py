"""The locks of package managers: waited for, and who holds one is named."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.errors import Unavailable
from agent.host import processes
from agent.host.failures import in_words

_POLL = 0.2

Try = Callable[[int], None]
"""Takes a lock on a descriptor without waiting; raises BlockingIOError or PermissionError when another has it."""


def record(descriptor: int) -> None:
    """The lock of fcntl(2), which dpkg and rpm take."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def whole(descriptor: int) -> None:
    """The lock of flock(2), which apk takes."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def wait(paths: Sequence[Path], patience: float, attempt: Try = record) -> None:
    """Return when nobody holds a lock on these files; Unavailable, naming the holder, after `patience` seconds."""
    deadline = time.monotonic() + patience
    for path in paths:
        while not _is_free(path, attempt):
            if time.monotonic() >= deadline:
                raise Unavailable(f"Packages can't be installed now: {holder(path)} holds {path}; wait for it to end.")
            time.sleep(_POLL)


@contextmanager
def alone(database: Path, patience: float) -> Iterator[None]:
    """Hold the lock by which agents of several state folders take turns; Unavailable after `patience` seconds."""
    deadline = time.monotonic() + patience
    with in_words("Locking", database):
        # Of the directory itself, which no package manager locks: nothing needs to be made for it.
        descriptor = os.open(database, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            try:
                whole(descriptor)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        "Another agent on this machine is installing packages; wait for it to end."
                    ) from error
            time.sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


def holder(path: Path) -> str:
    """Who holds a lock on this file, to begin a sentence."""
    try:
        pid = parse_holder(Path("/proc/locks").read_text("ascii"), path.stat().st_ino)
    except OSError:
        pid = None
    return "another program" if pid is None else f"process {pid} ({processes.command(pid)})"


def parse_holder(text: str, inode: int) -> int | None:
    """The pid that holds a lock on the file of this inode, from the text of /proc/locks (proc(5))."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] != "->" and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def _is_free(path: Path, attempt: Try) -> bool:
    with in_words("Looking at", path):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            attempt(descriptor)
        except (BlockingIOError, PermissionError):  # fcntl(2): EAGAIN or EACCES
            return False
        finally:
            os.close(descriptor)
        return True
