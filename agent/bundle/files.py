"""Files that are read in pieces, and what is said of those that can't be, or were cut short."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from agent.errors import Refused

CHUNK = 1024 * 1024
"""How many bytes of a blob are in memory at once."""

DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What the zip library raises for an archive that is cut short or changed."""


def read_chunks(path: Path, start: int = 0, size: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` on, `size` of them or as many as there are. Refused when it can't be
    read."""
    left = size
    try:
        with path.open("rb", buffering=0) as stream:
            stream.seek(start)
            while chunk := stream.read(CHUNK if left is None else min(CHUNK, left)):
                if left is not None:
                    left -= len(chunk)
                yield chunk
    except OSError as error:
        raise Refused(f"Cannot read the bundle's {path}: {error.strerror}.") from error


def damaged(path: Path, error: Exception | str) -> Refused:
    """What is said of an agent file that is not as it was made."""
    return Refused(f"{path} is damaged or no agent file ({error}): copy it here again, whole.")
