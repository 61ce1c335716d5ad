from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.host import commands, detached, processes
from agent.host.commands import CommandFailed, ProgramMissing
from agent.host.processes import Process

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def mark() -> Iterator[str]:
    """A value for MARK in the environment; all that carries it is ended afterwards."""
    value = os.urandom(8).hex()
    yield value
    processes.end(lambda: processes.with_environment("MARK", value), timeout=5)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def parent_of(process: Process) -> int:
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_detached_program_runs_clean_as_its_user(ground: Path, mark: str) -> None:
    log = ground / "log"
    script = "pwd; id -u; umask; env | sort; ls -l /proc/self/fd; cat; echo error >&2; exec sleep 1000"
    recorded: list[Process] = []
    process = detached.spawn(
        ["sh", "-c", script],
        environment={"MARK": mark},
        user="nobody",
        directory=ground,
        log=log,
        record=recorded.append,
    )
    until(lambda: "error" in log.read_text())
    assert recorded == [process]
    assert parent_of(process) != os.getpid()
    assert os.getsid(process.pid) == process.pid
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.stat().st_uid == 0
    text = log.read_text()
    assert text.startswith(f"{ground}\n65534\n0022\n")
    assert f"MARK={mark}\n" in text
    assert "HOME=/nonexistent\n" in text
    assert "/dev/null" in text
    # Only 0, 1, 2 and what `ls` itself opened to look.
    assert sum(" -> " in line for line in text.splitlines()) == 4
    ignored = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "SigIgn" in line)
    assert int(ignored.split()[1], 16) == 0


def test_it_waits_while_it_is_being_recorded(ground: Path, mark: str) -> None:
    proof = ground / "proof"

    def record(process: Process) -> None:
        assert processes.is_alive(process)
        assert processes.with_environment("MARK", mark) == [process]
        assert not proof.exists()

    process = detached.spawn(
        ["sh", "-c", f"touch {proof}; exec sleep 1000"],
        environment={"MARK": mark},
        user="root",
        directory=Path("/"),
        log=ground / "log",
        record=record,
    )
    until(proof.exists)
    assert processes.is_alive(process)


def test_it_never_runs_when_it_could_not_be_recorded(ground: Path, mark: str) -> None:
    class Full(Exception):
        pass

    def record(process: Process) -> None:
        raise Full

    with pytest.raises(Full):
        detached.spawn(
            ["touch", str(ground / "proof")],
            environment={"MARK": mark},
            user="root",
            directory=Path("/"),
            log=ground / "log",
            record=record,
        )
    until(lambda: processes.with_environment("MARK", mark) == [])
    assert not (ground / "proof").exists()


@pytest.mark.parametrize(
    ("argv", "directory", "complaint"),
    [
        (["/no/such/program"], "/", "/no/such/program: No such file or directory"),
        (["/etc/passwd"], "/", "/etc/passwd: Permission denied"),
        (["true"], "/no/such", "/no/such: No such file or directory"),
    ],
)
def test_what_cannot_be_executed_is_said(ground: Path, argv: list[str], directory: str, complaint: str) -> None:
    with pytest.raises(CommandFailed, match=f"can't start as nobody in {directory}: {complaint}"):
        detached.spawn(
            argv,
            environment={},
            user="nobody",
            directory=Path(directory),
            log=ground / "log",
            record=lambda process: None,
        )


def test_a_program_is_looked_for_on_its_own_path(ground: Path) -> None:
    program = ground / "program"
    program.write_text("#!/bin/sh\necho found\n")

    def spawn() -> None:
        detached.spawn(
            ["program"],
            environment={"PATH": str(ground)},
            user="nobody",
            directory=Path("/"),
            log=ground / "log",
            record=lambda process: None,
        )

    with pytest.raises(ProgramMissing, match="`program` can't run: program is not on this machine"):
        spawn()
    program.chmod(0o755)
    spawn()
    until(lambda: (ground / "log").read_text() == "found\n")


def test_it_survives_the_one_who_started_it(ground: Path, mark: str) -> None:
    program = f"""
import os, signal
from pathlib import Path
from agent.host import detached
detached.spawn(["sleep", "1000"], environment={{"MARK": {mark!r}}}, user="root", directory=Path("/"),
    log=Path({str(ground / "log")!r}), record=lambda process: print(process.pid, flush=True))
os.killpg(0, signal.SIGKILL)
"""
    finished = commands.run([sys.executable, "-c", program], directory=REPOSITORY, check=False)
    assert finished.code == -9
    until(lambda: [p.pid for p in processes.with_environment("MARK", mark)] == [int(finished.stdout)])
    until(lambda: processes.command(int(finished.stdout)).endswith("/sleep 1000"))
