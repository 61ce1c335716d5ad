"""The file this process was started from, and what its build wrote down about itself.

Light enough for every command: reads one small member of the archive without a zip library.
"""

from __future__ import annotations

import json
import sys
import zipimport
from dataclasses import dataclass
from pathlib import Path

from agent import __version__
from agent.errors import Refused

BUILD_MEMBER = "build.json"


@dataclass(frozen=True, slots=True)
class Build:
    """A build's own record: the version, the commit it was made of, and an id of all the code it carries."""

    version: str
    commit: str
    id: str


def running_file() -> Path | None:
    """Return the absolute path of the one file this process was started from; None when run from a source
    tree."""
    # The start-up module is the main one of the process, under no name that could be imported.
    path = getattr(sys.modules.get("__main__"), "AGENT_FILE", "")
    return Path(path) if path else None


def read_build(file: Path | None) -> Build:
    """Return what the build of `file` recorded; for None, a source tree's. Refused when it can't be read."""
    if file is None:
        return Build(version=__version__, commit="unknown", id="source")
    try:
        archive = zipimport.zipimporter(str(file))
        record = json.loads(archive.get_data(BUILD_MEMBER))
        return Build(version=str(record["version"]), commit=str(record["commit"]), id=str(record["id"]))
    except (ImportError, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{file} is no agent file or is damaged ({error}): copy it here again, whole.") from error
