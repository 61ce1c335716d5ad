"""What `agent --version` says: what this file is and carries, and what runs it."""

from __future__ import annotations

import os
import sys

from agent.build import describe


def version() -> str:
    """What was built, Python and platform, in one line."""
    machine = os.uname()
    return f"{describe()}, Python {sys.version.split()[0]}, {machine.sysname.lower()} {machine.machine}"
