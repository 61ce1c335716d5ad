"""A control group (cgroup v2) of one's own for a service: whatever it starts stays inside, whatever it does.

- Where none can be made (no cgroup2 mount, a read-only one, no right) there is none: that is no failure.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from agent.errors import Unavailable
from agent.host import processes
from agent.host.failures import in_words
from agent.host.processes import Process

_PREFIX = "mesh-agent-"


def find(name: str) -> Path | None:
    """The control group `name` (one path component), where it exists."""
    path = _place(name)
    return path if path is not None and path.is_dir() else None


def make(name: str) -> Path | None:
    """The control group `name`, made when absent; None where none can be made or none can be entered."""
    path = _place(name)
    if path is None:
        return None
    try:
        path.mkdir(exist_ok=True)
    except OSError:
        return None
    return path if os.access(path / "cgroup.procs", os.W_OK) else None


def enter(group: Path, pid: int) -> bool:
    """Moves a process into the group, where its later children will be too; False where that can't be."""
    try:
        (group / "cgroup.procs").write_text(str(pid), "ascii")
    except OSError:
        return False
    return True


def members(group: Path) -> list[Process]:
    """The living processes of the group and of the groups inside it; none when it is absent."""
    found = []
    for folder, _, _ in os.walk(group):
        try:
            pids = (Path(folder) / "cgroup.procs").read_text("ascii").split()
        except OSError:
            continue
        found += [process for process in map(processes.find, map(int, pids)) if process is not None]
    return sorted(found)


def remove(group: Path) -> None:
    """Removes the group and those inside it, if there; Unavailable while a process is in one."""
    if living := members(group):
        raise Unavailable(f"Process {living[0].pid} is still in the control group {group}; end it first.")
    with in_words("Removing control group", group):
        for folder, _, _ in os.walk(group, topdown=False):
            os.rmdir(folder)


def _place(name: str) -> Path | None:
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return None
    root = mount_point(mounts)
    return None if root is None else root / f"{_PREFIX}{name}"


def mount_point(mountinfo: str) -> Path | None:
    """Where the unified hierarchy is mounted, from the text of /proc/PID/mountinfo (proc(5))."""
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        if dash and after.split(" ", 1)[0] == "cgroup2":
            escaped = before.split(" ")[4]
            return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), escaped))
    return None
