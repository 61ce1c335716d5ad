from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.host.commands import CommandFailed, Finished
from agent.kinds.package import apt
from agent.kinds.package.apt import Apt, Status

POLICY = """hello:
  Installed: (none)
  Candidate: 2.10-3
  Version table:
     2.10-3 500
        500 http://deb.example.org bookworm/main amd64 Packages
"""


class Answers:
    """Stands for apt and dpkg: answers each command with the next of what it was given for its first words."""

    def __init__(self, answers: Mapping[str, list[tuple[int, str]]]) -> None:
        self.answers = {words: list(listed) for words, listed in answers.items()}
        self.asked: list[str] = []

    def __call__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        check: bool = True,
    ) -> Finished:
        line = " ".join(argv)
        words, listed = next((words, a) for words, a in self.answers.items() if line.startswith(words))
        self.asked.append(words)
        code, text = listed.pop(0) if len(listed) > 1 else listed[0]
        finished = Finished(tuple(argv), code, text.encode() if code == 0 else b"", text.encode() if code else b"")
        if check and code:
            raise CommandFailed(argv, text, finished)
        return finished


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", Status.ABSENT),
        ("not-installed\n", Status.ABSENT),
        ("config-files\n", Status.ABSENT),
        ("installed\n", Status.INSTALLED),
        ("not-installed\ninstalled\n", Status.INSTALLED),
        ("triggers-awaited\n", Status.INSTALLED),
        ("unpacked\n", Status.INTERRUPTED),
        ("half-configured\n", Status.INTERRUPTED),
        ("half-installed\n", Status.INTERRUPTED),
        ("triggers-pending\n", Status.INTERRUPTED),
    ],
)
def test_what_dpkg_query_answers(text: str, status: Status) -> None:
    assert apt.parse_status(text) is status


@pytest.mark.parametrize(
    ("text", "candidate"),
    [(POLICY, "2.10-3"), (POLICY.replace("2.10-3", "(none)"), None), ("", None), ("N: Unable to locate\n", None)],
)
def test_what_apt_would_install(text: str, candidate: str | None) -> None:
    assert apt.parse_candidate(text) == candidate


@pytest.mark.parametrize(
    ("text", "outdated"),
    [
        ("E: Failed to fetch http://deb.example.org/x.deb  404  Not Found [IP: ::1 80]", True),
        ("E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?", True),
        ("E: Failed to fetch x.deb  Hash Sum mismatch", True),
        ("E: Sub-process /usr/bin/dpkg returned an error code (1)", False),
        ("Unpacking web (1.4041) ...", False),
    ],
)
def test_when_lists_are_outdated(text: str, outdated: bool) -> None:
    assert apt.is_outdated(Finished((), 100, b"", text.encode())) is outdated


@pytest.mark.parametrize(
    ("stdout", "stderr", "line"),
    [
        (
            "Setting up web (1) ...\n",
            "dpkg: error processing package web (--configure):\n its script failed with status 1\nE: dpkg failed\n",
            "dpkg: error processing package web (--configure): its script failed with status 1",
        ),
        ("", "W: a warning\nE: Unable to locate package web\nE: and more\n", "E: Unable to locate package web"),
        ("one\ntwo\n\n", "", "two"),
        ("", "", "it said nothing."),
    ],
)
def test_the_line_that_says_why(stdout: str, stderr: str, line: str) -> None:
    assert apt.complaint(Finished((), 100, stdout.encode(), stderr.encode())) == line


def test_the_holder_of_a_lock() -> None:
    text = (
        "1: POSIX  ADVISORY  WRITE 411 08:01:131 0 EOF\n"
        "1: -> POSIX  ADVISORY  WRITE 500 08:01:131 0 EOF\n"
        "2: OFDLCK ADVISORY  READ -1 00:06:13 0 0\n"
    )
    assert apt.parse_lock_holder(text, 131) == 411
    assert apt.parse_lock_holder(text, 13) is None
    assert apt.parse_lock_holder(text, 1) is None
    assert apt.parse_lock_holder("", 131) is None


def test_a_known_package_is_installed_without_fetching_lists() -> None:
    run = Answers({"apt-cache": [(0, POLICY)], "apt-get install": [(0, "")], "dpkg-query": [(0, "installed\n")]})
    Apt(run).install("hello")
    assert run.asked == ["apt-cache", "apt-get install", "dpkg-query"]


def test_lists_are_fetched_where_they_do_not_know_the_package() -> None:
    run = Answers(
        {
            "apt-cache": [(0, ""), (0, POLICY)],
            "apt-get update": [(0, "")],
            "apt-get install": [(0, "")],
            "dpkg-query": [(0, "installed\n")],
        }
    )
    Apt(run).install("hello")
    assert run.asked == ["apt-cache", "apt-get update", "apt-cache", "apt-get install", "dpkg-query"]


def test_a_package_that_nobody_knows_is_a_failure_in_words() -> None:
    run = Answers({"apt-cache": [(0, "")], "apt-get update": [(0, "")]})
    with pytest.raises(Unavailable, match="apt knows no package hello that could be installed; see `apt-cache"):
        Apt(run).install("hello")


def test_outdated_lists_are_fetched_once() -> None:
    gone = (100, "E: Failed to fetch http://deb.example.org/hello.deb  404  Not Found\n")
    run = Answers({"apt-cache": [(0, POLICY)], "apt-get update": [(0, "")], "apt-get install": [gone]})
    with pytest.raises(CommandFailed, match="404"):
        Apt(run).install("hello")
    assert run.asked == ["apt-cache", "apt-get install", "apt-get update", "apt-get install"]


def test_another_failure_is_not_tried_again() -> None:
    broken = (100, "E: hello : Depends: world but it is not installable\n")
    run = Answers({"apt-cache": [(0, POLICY)], "apt-get install": [broken]})
    with pytest.raises(CommandFailed, match="failed with exit status 100: E: hello : Depends: world"):
        Apt(run).install("hello")
    assert run.asked == ["apt-cache", "apt-get install"]


def test_an_installation_that_installs_nothing_is_a_failure() -> None:
    run = Answers({"apt-cache": [(0, POLICY)], "apt-get install": [(0, "")], "dpkg-query": [(1, "no such")]})
    with pytest.raises(Unavailable, match="hello is not installed; see `dpkg -s hello`"):
        Apt(run).install("hello")


def test_a_database_that_cannot_be_read_is_no_absent_package() -> None:
    run = Answers({"dpkg-query": [(2, "dpkg-query: error: failed to open package info file")]})
    with pytest.raises(Unavailable, match="failed to open package info file"):
        Apt(run).status("hello")


HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read(1)
"""
HOLD_DIRECTORY = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read(1)
"""


@contextmanager
def held(script: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process


@pytest.mark.parametrize("name", ["lock-frontend", "lock"])
def test_who_holds_the_lock_of_dpkg_is_named(tmp_path: Path, name: str) -> None:
    Apt(database=tmp_path).wait_for_lock()
    with held(HOLD, tmp_path / name) as holder:
        with pytest.raises(Unavailable) as failure:
            Apt(database=tmp_path, patience=0.3).wait_for_lock()
        assert f"process {holder.pid} ({sys.executable}" in str(failure.value)
        assert str(failure.value).endswith(f"holds {tmp_path / name}; wait for it to end.")
    Apt(database=tmp_path).wait_for_lock()


def test_the_lock_is_waited_for(tmp_path: Path) -> None:
    with held(HOLD, tmp_path / "lock-frontend") as holder:
        assert holder.stdin is not None
        holder.stdin.close()
        Apt(database=tmp_path, patience=60).wait_for_lock()
        deadline = time.monotonic() + 20
        while holder.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_two_agents_take_turns(tmp_path: Path) -> None:
    with (
        held(HOLD_DIRECTORY, tmp_path),
        pytest.raises(Unavailable, match="Another agent on this machine is installing"),
        Apt(database=tmp_path, patience=0.3).alone(),
    ):
        pass
    with Apt(database=tmp_path, patience=0.3).alone():
        pass
    assert list(tmp_path.iterdir()) == []
