"""Files that something running depends on: what is in them, and whether they were written since.

- The agent's own copy is told by what its build says it is: it is looked at every few seconds and may be gigabytes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from agent.host.failures import in_words
from agent.kinds.kind import Machine

_CHUNK = 1024 * 1024


def digests(paths: Iterable[Path], machine: Machine) -> dict[str, str]:
    """The SHA-256 of each file's content as lower-case hex; "" for one that is no file (yet)."""
    own = machine.state / "agent"
    return {str(path): machine.program if machine.program and path == own else _digest(path) for path in paths}


def look_of(path: Path) -> str:
    """How a path looks from outside, another text after each time it is written; "" when nothing is there.

    Comparing looks needs no clock: a file's time may lie a tick before the moment it was written in.
    """
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with in_words("Reading the watched file", path):
        try:
            # O_NONBLOCK: a named pipe put there must not make this wait.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return ""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            while chunk := os.read(descriptor, _CHUNK):
                digest.update(chunk)
        finally:
            os.close(descriptor)
    return digest.hexdigest()
