"""Runs a command that is killed, as by a loss of power, just before its AT-th call of a kind: CALL AT COMMAND…

A tracer may wait for ever for a thread of what it has killed, which until then nobody else can wait for. So it is
ended, some seconds after what it traced.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

# How long a tracer has to let go.
PATIENCE = 5.0


def tracer(call: str, at: int) -> tuple[str, ...]:
    """Words of a tracer that kills what it traces just before its `at`-th call of this kind."""
    inject = f"inject={call}:signal=KILL:when={at}"
    return ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)


def killing(call: str, at: int) -> tuple[str, ...]:
    """Words to put before a command, so that it is killed just before its `at`-th call of this kind."""
    return (sys.executable, str(Path(__file__)), call, str(at))


def has_ended(process: int) -> bool:
    """Whether a process that is there has ended, and waits to be waited for."""
    return status(Path(f"/proc/{process}"), "State")[0] == "Z"


def status(process: Path, key: str) -> str:
    """What /proc/PID/status says of a process or thread under this key, up to a blank."""
    (line,) = (line for line in (process / "status").read_text().splitlines() if line.startswith(f"{key}:"))
    return line.split()[1]


def _has_killed(tracer: int) -> bool:
    children = Path(f"/proc/{tracer}/task/{tracer}/children").read_text().split()
    return bool(children) and all(has_ended(int(child)) for child in children)


def _run(call: str, at: str, *command: str) -> int:
    process = subprocess.Popen([*tracer(call, int(at)), *command])
    alive = time.monotonic()
    while True:
        try:
            return process.wait(0.05)
        except subprocess.TimeoutExpired:
            if not _has_killed(process.pid):
                alive = time.monotonic()
            elif time.monotonic() > alive + PATIENCE:
                process.kill()
                return process.wait()


if __name__ == "__main__":
    code = _run(*sys.argv[1:])
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)
