"""The log of a detached service: what is last in it, and that it doesn't grow for ever.

- The service has it open and can't be told to open another one, so what is in it is copied and the file emptied:
  what it writes goes to the end of the file (O_APPEND). What is written in the moment between the two is lost.
- One older file is kept. Both together stay near twice the bound.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agent.host import files
from agent.host.failures import in_words

BOUND = 10 * 1024 * 1024
"""How much a log may hold before it is rotated, in bytes."""

_TAIL = 8192
_CHUNK = 1024 * 1024


def files_of(log: Path) -> tuple[Path, Path]:
    """The log and the older one beside it."""
    return log, log.with_name(f"{log.name}.1")


def size(log: Path) -> int:
    """The bytes in a log now; 0 when there is none."""
    with in_words("Looking at the log", log):
        try:
            return log.lstat().st_size
        except FileNotFoundError:
            return 0


def tail(log: Path, begin: int) -> list[str]:
    """The last lines of a log from byte `begin` on; of all of it when it has been rotated since."""
    with in_words("Reading the log", log):
        try:
            with log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(begin if begin <= end else 0, end - _TAIL))
                return file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []


def rotate(log: Path, bound: int = BOUND) -> bool:
    """Begin the log anew when it holds more than `bound` bytes, whose last ones are kept; says whether it was so."""
    if size(log) <= bound:
        return False
    current, older = files_of(log)
    with in_words("Rotating the log", log), current.open("r+b") as file:
        file.seek(-bound, os.SEEK_END)
        files.write(older, _rest(file), mode=0o600, uid=os.geteuid(), gid=os.getegid())
        file.truncate(0)
    return True


def rotate_all(state: Path, bound: int = BOUND) -> None:
    """Rotate every log in a state folder that needs it."""
    for log in sorted((state / "log").glob("*.log")):
        rotate(log, bound)


def _rest(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk
