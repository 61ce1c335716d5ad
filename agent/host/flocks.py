"""Whether a file is locked, by whomever."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from agent.host.failures import in_words


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
