from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.errors import Fatal
from agent.node import folder, succession
from agent.node.program import Program

REPOSITORY = Path(__file__).parents[3]
OLD, NEW = (Program(version, "c", f"build {version}", "tiny", "d") for version in ("1", "2"))

# Holds the folder as this program ("" for none) until it is asked to end, or beyond.
HOLDER = """
import signal, sys
from pathlib import Path
from agent.node import folder
from agent.node.program import decode
state, text, stubborn = sys.argv[1:]
if stubborn:
    signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
with folder.lock(Path(state), decode(text.encode()) if text else None):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def state(ground: Path) -> Path:
    folder.prepare(ground / "state")
    return ground / "state"


@contextmanager
def holding(state: Path, program: Program | None, *, stubborn: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDER, state, program.encode() if program else "", "stubborn" if stubborn else ""]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            yield other
        finally:
            other.kill()


def predecessor(state: Path, program: Program, *, once: bool = False, running: Path | None = None) -> int | None:
    found = succession.predecessor(state, running, program, once=once)
    return found.process.pid if found else None


def test_nobody_is_asked_where_nobody_is(state: Path) -> None:
    assert predecessor(state, NEW) is None
    assert predecessor(state, NEW, once=True) is None
    with succession.succeed(state, NEW, None):
        assert folder.occupant(state) is not None


def test_another_file_s_agent_gives_way(state: Path) -> None:
    with holding(state, OLD) as other:
        before = succession.predecessor(state, None, NEW, once=False)
        assert before == folder.occupant(state)
        assert before is not None
        assert before.process.pid == other.pid
        with succession.succeed(state, NEW, before):
            found = folder.occupant(state)
            assert found is not None
            assert found.program == NEW
            assert other.wait() == -15
        assert folder.occupant(state) is None


@pytest.mark.parametrize("program", [NEW, None])
def test_the_same_file_s_agent_and_who_is_at_something_else_stay(state: Path, program: Program | None) -> None:
    with holding(state, program) as other:
        why = rf"an agent is already running on {state} \(process {other.pid}\)"
        with pytest.raises(Fatal, match=why):
            predecessor(state, NEW)
        # Even when another one was there a moment ago.
        before = folder.Occupant(folder.occupant(state).process, OLD)  # type: ignore[union-attr]
        for after in (None, before):
            with pytest.raises(Fatal, match=why), succession.succeed(state, NEW, after):
                pass
        assert other.poll() is None


def test_who_would_not_stay_and_the_own_copy_take_no_place(state: Path) -> None:
    copy = state / "agent"
    copy.touch()
    with holding(state, OLD) as other:
        with pytest.raises(Fatal, match=rf"another file is running .* \(process {other.pid}\), and `up --once` would"):
            predecessor(state, NEW, once=True)
        with pytest.raises(Fatal, match="already running"):
            predecessor(state, NEW, running=copy)
        with pytest.raises(Fatal, match="already running"), succession.succeed(state, NEW, None):
            pass
        assert other.poll() is None


def test_one_that_does_not_end_keeps_its_place(state: Path) -> None:
    with holding(state, OLD, stubborn=True) as other:
        before = succession.predecessor(state, None, NEW, once=False)
        why = rf"\(process {other.pid}\) has not ended 0 s after it was asked to, so nothing was changed"
        with pytest.raises(Fatal, match=why), succession.succeed(state, NEW, before, patience=0.2):
            pass
        assert other.poll() is None
        assert folder.occupant(state) == before


def test_one_that_is_suspended_is_not_asked(state: Path) -> None:
    with holding(state, OLD) as other:
        os.kill(other.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        with pytest.raises(Fatal, match=rf"is suspended, so it can't give way; .* `kill -CONT {other.pid}`"):
            predecessor(state, NEW)


def test_whoever_interrupts_the_wait_is_told_that_the_other_one_ends(state: Path) -> None:
    with holding(state, OLD, stubborn=True) as other:
        before = succession.predecessor(state, None, NEW, once=False)

        def interrupt() -> None:
            assert other.stdout is not None
            assert other.stdout.readline() == b"asked\n"
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        why = rf"after the agent that runs on {state} had been asked to end; it ends"
        with pytest.raises(Fatal, match=why), succession.succeed(state, NEW, before):
            pass
        thread.join()
        assert folder.occupant(state) == before
