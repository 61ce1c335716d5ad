from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.host import commands, detached, locks, processes
from agent.host.locks import Held, Holder
from agent.host.processes import Process

REPOSITORY = Path(__file__).parents[3]
# Holds the lock for as long as its input is open; in a namespace of pids of its own, as a container's processes are.
HOLD = """
import fcntl, sys
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_for_the_block_and_says_by_whom(ground: Path) -> None:
    path = ground / "lock"
    assert locks.holder(path) is None
    with locks.hold(path):
        assert locks.holder(path) == Holder(processes.current(), "")
        with (
            pytest.raises(Held, match=rf"{path} is held by process {os.getpid()} \(.*python") as caught,
            locks.hold(path),
        ):
            pass
        assert caught.value.holder == processes.current()
        assert locks.holder(path) == Holder(processes.current(), "")
    assert locks.holder(path) is None
    with locks.hold(path, "a note"):
        assert locks.holder(path) == Holder(processes.current(), "a note")
        with pytest.raises(Held) as caught, locks.hold(path):
            pass
        assert caught.value.note == "a note"
    assert locks.holder(path) is None


def test_a_block_that_fails_lets_go(ground: Path) -> None:
    path = ground / "lock"
    with pytest.raises(RuntimeError), locks.hold(path):
        raise RuntimeError
    assert locks.holder(path) is None
    with locks.hold(path):
        pass


def test_the_lock_of_a_killed_process_is_free(ground: Path) -> None:
    path = ground / "lock"
    program = f"""
import os, signal
from pathlib import Path
from agent.host import locks
with locks.hold(Path({str(path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert commands.run([sys.executable, "-c", program], directory=REPOSITORY, check=False).code == -9
    assert path.read_text() != ""
    assert locks.holder(path) is None
    with locks.hold(path):
        pass


def test_what_we_start_does_not_inherit_the_lock(ground: Path) -> None:
    path = ground / "lock"
    started: list[Process] = []
    try:
        with locks.hold(path):
            detached.spawn(
                ["sleep", "1000"],
                environment={},
                user="root",
                directory=Path("/"),
                log=ground / "log",
                record=started.append,
            )
        with locks.hold(path):
            pass
    finally:
        processes.end(lambda: [process for process in started if processes.is_alive(process)])


def test_a_lock_is_held_by_whomever(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not locks.is_held(path)
    with locks.hold(path):
        assert locks.is_held(path)
    assert not locks.is_held(path)
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        assert locks.holder(path) is None
        assert locks.is_held(path)
        other.communicate()
    assert not locks.is_held(path)
