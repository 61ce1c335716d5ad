from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agent.host import flocks, locks

# Holds the lock for as long as its input is open; in a namespace of pids of its own, as a container's processes are.
HOLD = """
import fcntl, sys
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_by_whomever(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not flocks.is_held(path)
    with locks.hold(path):
        assert flocks.is_held(path)
    assert not flocks.is_held(path)
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        assert locks.holder(path) is None
        assert flocks.is_held(path)
        other.communicate()
    assert not flocks.is_held(path)
