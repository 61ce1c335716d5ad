"""What the operating system refuses, in words: the deed, the path, the reason, the remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.errors import Unavailable

_REASONS = {
    errno.ENOSPC: "the disk is full; make room and try again",
    errno.EDQUOT: "the disk quota is used up; make room and try again",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "this user may not; run it as root",
    errno.EPERM: "this user may not; run it as root",
    errno.EISDIR: "it is a directory",
    errno.ENOTEMPTY: "the directory is not empty",
    errno.EBUSY: "it is in use or a mount point",
    errno.ENAMETOOLONG: "the name is too long",
}


def reason(error: OSError) -> str:
    """Why the operating system said no, to follow a colon: no capital, no full stop."""
    if error.errno == errno.ENOENT and error.filename is not None:
        return f"{os.fsdecode(error.filename)} is not there"
    if error.errno is not None and error.errno in _REASONS:
        return _REASONS[error.errno]
    return error.strerror.lower() if error.strerror else str(error)


@contextmanager
def in_words(deed: str, path: Path) -> Iterator[None]:
    """Turns an OSError of the block into Unavailable: "DEED PATH failed: REASON."."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{deed} {path} failed: {reason(error)}.") from error
