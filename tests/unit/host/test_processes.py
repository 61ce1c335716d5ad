from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.host import processes
from agent.host.processes import Process

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a shell script in a session of its own, which is ended afterwards."""
    started = []

    def begin(script: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["sh", "-c", script],
            env={**os.environ, **environment},
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def found(process: subprocess.Popen[bytes]) -> Process:
    result = processes.find(process.pid)
    assert result is not None
    return result


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_was_stopped_is_suspended_until_it_goes_on(start: Start) -> None:
    process = processes.find(start("exec sleep 100").pid)
    assert process is not None
    assert not processes.is_suspended(process)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert processes.is_suspended(process)
    assert processes.is_alive(process)
    assert not processes.is_suspended(Process(process.pid, process.started + 1))
    os.kill(process.pid, signal.SIGCONT)
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)
    assert not processes.is_suspended(process)


def test_a_process_is_found_with_its_start(start: Start) -> None:
    first = found(start("exec sleep 1000"))
    until(lambda: processes.command(first.pid) == "sleep 1000")
    assert processes.is_alive(first)
    assert not processes.is_alive(Process(first.pid, first.started - 1))
    assert processes.current().started <= first.started


def test_a_name_with_brackets_and_spaces_is_no_trap(start: Start) -> None:
    shell = start('printf "a) R 1 (b" > /proc/$$/comm; echo ready; sleep 1000; true')
    line(shell)
    assert "(a) R 1 (b)" in Path(f"/proc/{shell.pid}/stat").read_text()
    assert found(shell).started >= processes.current().started


def test_a_zombie_is_dead(start: Start) -> None:
    shell = start("exit 0")
    until(lambda: processes.find(shell.pid) is None)
    assert ") Z " in Path(f"/proc/{shell.pid}/stat").read_text()
    shell.wait()
    assert processes.find(shell.pid) is None


def test_what_carries_an_environment_is_found(start: Start) -> None:
    value = os.urandom(8).hex()
    shell = start("sleep 1000 & echo $!; wait", MARK=value)
    child = int(line(shell))
    until(lambda: processes.command(child) == "sleep 1000")
    assert {p.pid for p in processes.with_environment("MARK", value)} == {shell.pid, child}
    assert processes.with_environment("MARK", value[:-1]) == []
    assert processes.with_environment("ARK", value) == []


def test_descendants_are_found_at_any_depth(start: Start) -> None:
    shell = start("sh -c 'sleep 1000 & echo $$ $!; wait' & wait")
    inner, sleeper = map(int, line(shell).split())
    assert [p.pid for p in processes.descendants(found(shell))] == sorted([inner, sleeper])
    assert processes.descendants(Process(shell.pid, 1)) == []


def test_a_command_line_is_quoted_and_bounded(start: Start) -> None:
    short = start("echo ready; sleep 1000; true")
    long = start("echo ready; sleep 1000; true " + "y" * 500)
    line(short)
    line(long)
    assert processes.command(short.pid) == "sh -c 'echo ready; sleep 1000; true'"
    assert len(processes.command(long.pid)) == 200
    assert processes.command(long.pid).startswith("sh -c 'echo ready; sleep 1000; true yyy")
    assert processes.command(long.pid).endswith("…")
    assert processes.command(2**22 + 1) == "unknown"


def test_end_signals_and_waits(start: Start) -> None:
    value = os.urandom(8).hex()
    shell = start("trap 'echo bye; exit 0' INT; echo ready; while :; do sleep 0.01; done", MARK=value)
    line(shell)
    processes.end(lambda: processes.with_environment("MARK", value), signal.SIGINT, 20)
    assert line(shell) == "bye"
    assert processes.with_environment("MARK", value) == []


def test_end_kills_what_does_not_listen(start: Start) -> None:
    value = os.urandom(8).hex()
    shell = start("trap '' TERM; echo ready; while :; do sleep 0.01; done", MARK=value)
    line(shell)
    processes.end(lambda: processes.with_environment("MARK", value), timeout=0.2)
    assert shell.wait() == -signal.SIGKILL


def test_end_also_ends_a_child_that_could_only_be_found_by_its_parent(start: Start) -> None:
    shell = start("sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.01; done' & wait")
    child = int(line(shell))
    main = found(shell)
    child_process = processes.find(child)
    assert child_process is not None

    def find_all() -> list[Process]:
        return [main, *processes.descendants(main)] if processes.is_alive(main) else []

    processes.end(find_all, timeout=0.2)
    assert not processes.is_alive(main)
    assert not processes.is_alive(child_process)


def test_a_signal_never_reaches_another_process_with_that_pid(start: Start) -> None:
    shell = start("echo ready; sleep 1000; true")
    line(shell)
    right = found(shell)
    processes.send(Process(right.pid, right.started + 1), signal.SIGKILL)
    processes.send(Process(2**22 - 1, 1), signal.SIGKILL)
    assert processes.is_alive(right)
    processes.send(right, signal.SIGKILL)
    assert shell.wait() == -signal.SIGKILL
