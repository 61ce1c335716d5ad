"""The mark on files and directories of the agent's, as the file system has it."""

from __future__ import annotations

import os
from pathlib import Path

_ATTRIBUTE = "trusted.mesh-agent"


def mark_of(path: Path) -> bytes | None:
    """The mark of what is at `path`; None when it has none."""
    return os.getxattr(path, _ATTRIBUTE) if _ATTRIBUTE in os.listxattr(path) else None


def put_mark(path: Path, value: bytes) -> None:
    """Put a mark on what is at `path`."""
    os.setxattr(path, _ATTRIBUTE, value)
