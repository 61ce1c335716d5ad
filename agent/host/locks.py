"""One holder at a time: a file lock that ends with its process, however that ends, and names it meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Unavailable
from agent.host import processes
from agent.host.failures import in_words
from agent.host.processes import Process


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, and the line that it left there about itself."""

    process: Process
    note: str


class Held(Unavailable):
    """The lock is another process's; `holder` and `note` are None and "" when that one can't be seen from here."""

    def __init__(self, path: Path, by: Holder | None) -> None:
        who = f"process {by.process.pid} ({processes.command(by.process.pid)})" if by else "another process"
        super().__init__(f"{path} is held by {who}; wait for it to end, or stop it.")
        self.path = path
        self.holder = by.process if by else None
        self.note = by.note if by else ""


@contextmanager
def hold(path: Path, note: str = "") -> Iterator[None]:
    """Holds the lock `path` (made 0600 when absent) for the block; Held at once when another has it.

    `note` is a line for whoever asks who holds it.
    """
    with in_words("Locking", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with in_words("Locking", path):
            _lock(descriptor, path, note)
        try:
            yield
        finally:
            # The file stays: removing a lock lets two processes hold two files of one name.
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path) -> Holder | None:
    """The living process that holds the lock `path`, None when nobody does; the lock isn't touched."""
    with in_words("Reading", path):
        try:
            line, _, note = path.read_text("utf-8", "replace").partition("\n")
        except FileNotFoundError:
            return None
    words = line.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    process = Process(int(words[0]), int(words[1]))
    return Holder(process, note.rstrip("\n")) if processes.is_alive(process) else None


def is_held(path: Path) -> bool:
    """Whether any process holds the lock `path`, be it one that can't be seen from here, as in a container.

    For an instant the lock is shared by whoever asks: one that is about to take it is to try more than once.
    """
    with in_words("Looking at the lock", path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _lock(descriptor: int, path: Path, note: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Held(path, holder(path)) from error
    me = processes.current()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{me.pid} {me.started}\n{note}\n".encode(), 0)
