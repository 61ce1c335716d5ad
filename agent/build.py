"""The file this process was started from, and what its build wrote down about itself.

Light enough for every command: the start-up has read both already. It is the main module of the process, under no name
that could be imported.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from agent import __version__

if TYPE_CHECKING:
    from pathlib import Path

BUILD_MEMBER = "build.json"


def running_file() -> Path | None:
    """Return the absolute path of the one file this process was started from; None when run from a source
    tree."""
    from pathlib import Path

    path = getattr(sys.modules.get("__main__"), "AGENT_FILE", "")
    return Path(path) if path else None


def recorded() -> bytes:
    """Return what the running file's build recorded, as JSON: `version`, `commit`, `id` (a digest of all the code),
    `bundle` (`name`, `digest`). Empty in a source tree."""
    record: bytes = getattr(sys.modules.get("__main__"), "BUILD_RECORD", b"")
    return record


def describe() -> str:
    """Return what the running file's build recorded, in one line. A source tree has a version alone."""
    encoded = recorded()
    if not encoded:
        return f"agent {__version__} in a source tree, no bundle"
    record = json.loads(encoded)
    bundle = record["bundle"]
    return (
        f"agent {record['version']}, commit {record['commit']}, build {record['id']}, "
        f"bundle {bundle['name']} {bundle['digest'][:12]}"
    )
