from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.host import commands, processes
from agent.host.commands import CommandFailed, Finished, ProgramMissing


def test_run_gives_code_and_both_outputs() -> None:
    finished = commands.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in", check=False)
    assert finished == Finished(("sh", "-c", "cat; echo err >&2; exit 3"), 3, b"in", b"err\n")


def test_run_gives_a_clean_environment_and_what_is_added() -> None:
    output = commands.run(["env"], environment={"LANG": "C", "MORE": "1"}, user="nobody").stdout
    assert dict(line.split("=", 1) for line in output.decode().splitlines()) == {
        "PATH": commands.PATH,
        "LANG": "C",
        "HOME": "/nonexistent",
        "USER": "nobody",
        "LOGNAME": "nobody",
        "MORE": "1",
    }


def test_run_as_another_user_leaves_no_right_of_ours(ground: Path) -> None:
    output = commands.run(["sh", "-c", "id -u; id -G; pwd; umask"], user="nobody", directory=ground).stdout
    uid, groups, directory, umask = output.decode().split("\n")[:4]
    assert int(uid) != 0
    assert "0" not in groups.split()
    assert directory == str(ground)
    assert umask == "0022"


def test_a_failure_can_be_pasted_and_says_the_last_thing_said() -> None:
    with pytest.raises(CommandFailed) as caught:
        commands.run(["sh", "-c", "echo first >&2; echo 'the \x1b[1mreason' >&2; echo; exit 5"])
    text = str(caught.value)
    assert text.startswith("`sh -c 'echo first >&2;")
    assert text.endswith("` failed with exit status 5: the [1mreason")
    assert caught.value.finished is not None
    assert caught.value.finished.code == 5


def test_a_failure_by_a_signal_names_it_and_falls_back_to_stdout() -> None:
    with pytest.raises(CommandFailed, match="was ended by SIGTERM: out"):
        commands.run(["sh", "-c", "echo out; kill -TERM $$"])


def test_a_time_out_ends_the_whole_group() -> None:
    mark = os.urandom(8).hex()
    with pytest.raises(CommandFailed, match=r"took longer than 0.5 seconds and was ended"):
        commands.run(["sh", "-c", "sleep 1000 & sleep 1000"], environment={"MARK": mark}, timeout=0.5)
    processes.end(lambda: processes.with_environment("MARK", mark), timeout=5)
    assert processes.with_environment("MARK", mark) == []


def test_run_does_not_wait_for_a_daemon_left_behind() -> None:
    mark = os.urandom(8).hex()
    finished = commands.run(["sh", "-c", "sleep 1000 & echo done"], environment={"MARK": mark})
    assert finished.stdout == b"done\n"
    assert len(processes.with_environment("MARK", mark)) == 1
    processes.end(lambda: processes.with_environment("MARK", mark))


def test_a_missing_program_is_said() -> None:
    with pytest.raises(ProgramMissing, match=r"`no-such-program x` can't run: no-such-program is not on this"):
        commands.run(["no-such-program", "x"])
    with pytest.raises(CommandFailed, match=r"can't start: /no/such/program: no such file"):
        commands.run(["/no/such/program"])
    assert commands.find("no-such-program") is None
    assert commands.find("sh") in {"/usr/bin/sh", "/bin/sh"}


def test_a_missing_directory_and_user_are_said() -> None:
    with pytest.raises(CommandFailed, match="can't start: /no/such: no such file or directory"):
        commands.run(["true"], directory=Path("/no/such"))
    with pytest.raises(Refused, match="no user 'no-such-user'"):
        commands.run(["true"], user="no-such-user")


def test_what_is_fed_is_never_whole_in_memory_and_what_is_said_is_heard_meanwhile() -> None:
    heard: list[str] = []
    alive: list[bool] = []

    def chunks() -> Iterator[bytes]:
        for at in range(8):
            # The program has taken and answered what was given it before: more than a pipe holds.
            alive.append(at < 3 or bool(heard))
            yield b"x" * (1 << 20)

    script = "import sys\nfor at in range(8):\n sys.stdin.buffer.read(1 << 20)\n print('took', at, flush=True)"
    finished = commands.feed([sys.executable, "-c", script], chunks(), timeout=60, tell=heard.append)
    assert heard == [f"took {at}" for at in range(8)]
    assert finished.stdout.decode().splitlines() == heard
    assert all(alive)


def test_progress_that_is_drawn_over_itself_is_lines() -> None:
    heard: list[str] = []
    commands.feed(["printf", r"10%%\r20%%\r\nthe end"], (), timeout=60, tell=heard.append)
    assert heard == ["10%", "20%", "the end"]


def test_a_program_that_wants_no_more_is_not_fed_for_ever() -> None:
    endless = iter(lambda: b"x" * 65536, b"")
    with pytest.raises(CommandFailed, match="failed with exit status 3: enough") as failure:
        commands.feed(["sh", "-c", "echo enough >&2; exit 3"], endless, timeout=60, tell=lambda line: None)
    assert failure.value.finished is not None


def test_a_program_is_ended_when_what_it_is_fed_breaks(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise Unavailable("the file is damaged")

    done = tmp_path / "done"
    with pytest.raises(Unavailable, match="the file is damaged"):
        commands.feed(["sh", "-c", f"cat; touch {done}"], broken(), timeout=60, tell=lambda line: None)
    assert not done.exists()


@pytest.mark.parametrize("script", ["sleep 1000", "exec <&-; sleep 1000"])
def test_a_program_that_takes_too_long_over_what_it_is_fed_is_ended(script: str) -> None:
    endless = iter(lambda: b"x" * 65536, b"")
    with pytest.raises(CommandFailed, match=r"took longer than 0\.3 seconds and was ended"):
        commands.feed(["sh", "-c", script], endless, timeout=0.3, tell=lambda line: None)


def test_what_a_program_writes_is_had_as_it_comes() -> None:
    script = "printf first; read -r go </dev/null; head -c 1000000 /dev/zero; echo last >&2"
    pieces = commands.read(["sh", "-c", script], timeout=60)
    assert next(pieces) == b"first"
    rest = list(pieces)
    assert b"".join(rest) == bytes(1_000_000)
    assert max(map(len, rest)) <= 65536


def test_what_was_written_before_a_failure_is_not_taken_for_whole() -> None:
    pieces = commands.read(["sh", "-c", "echo some; echo why >&2; exit 3"], timeout=60)
    assert next(pieces) == b"some\n"
    with pytest.raises(CommandFailed, match="failed with exit status 3: why"):
        next(pieces)
    with pytest.raises(CommandFailed, match=r"took longer than 0\.3 seconds and was ended"):
        list(commands.read(["sh", "-c", "echo some; sleep 1000"], timeout=0.3))


def test_a_program_is_ended_when_nobody_listens_any_more() -> None:
    mark = os.urandom(8).hex()
    pieces = commands.read(["sh", "-c", "yes"], environment={"MARK": mark}, timeout=60)
    next(pieces)
    assert processes.with_environment("MARK", mark)
    pieces.close()  # type: ignore[attr-defined]
    processes.end(lambda: processes.with_environment("MARK", mark), timeout=5)
    assert processes.with_environment("MARK", mark) == []
