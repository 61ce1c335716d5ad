"""How much memory a process has had at most, without what it starts."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# What is promised of whatever streams a bundle, in bytes.
BOUND = 64 << 20
_MOMENT = 0.01


def peak(pid: int) -> int:
    """The most that a living process has had in memory since its program began, in bytes; 0 for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def run(command: Sequence[str | Path], environment: Mapping[str, str]) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a program to its end, and see `peak` of it on the way."""
    most = 0
    with subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while True:
            most = max(most, peak(process.pid))
            try:
                output, errors = process.communicate(timeout=_MOMENT)
            except subprocess.TimeoutExpired:
                continue
            return subprocess.CompletedProcess(command, process.returncode, output, errors), most
