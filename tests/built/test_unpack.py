"""Where the built file's code is unpacked, who may have touched it there, and when it goes again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.bundle import add_member
from agent.start import is_complete
from tests.broker.rabbit import wait_until
from tests.built.starting import NOBODY, assert_runs, assert_sentence, run

# Mounts for one command, which end with it; the words after `--` are what is run.
_MOUNTED = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'


@pytest.fixture
def environment(place: Path) -> dict[str, str]:
    return {"AGENT_STATE": str(place / "state")}


@pytest.fixture
def home(place: Path) -> Path:
    """A home folder of a user who isn't root."""
    path = place / "home"
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    return path


def mounted(options: str, folder: Path, *command: str | Path) -> list[str | Path]:
    """A command that finds an empty file system of its own at `folder`."""
    return ["unshare", "--mount", "sh", "-c", _MOUNTED, "sh", options, folder, *command]


def as_nobody(*command: str | Path) -> list[str | Path]:
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]


def other_build(file: Path, build: str) -> Path:
    """The same file as another build of it."""
    path = file.with_name(build)
    with zipfile.ZipFile(file) as source, path.open("wb") as target:
        header = min(member.header_offset for member in source.infolist())
        target.write(file.read_bytes()[:header])
        with zipfile.ZipFile(target, "w") as archive:
            for member in source.infolist():
                content = source.read(member)
                if member.filename == "build.json":
                    content = json.dumps({**json.loads(content), "id": build}).encode()
                add_member(archive, member.filename, [content], len(content))  # as it is: that is quicker
    path.chmod(0o755)
    return path


def builds(state: Path) -> set[str]:
    return {path.name.split("-")[0] for path in (state / "runtime").iterdir() if path.is_dir()}


def test_folders_are_this_users_alone(file: Path, place: Path, environment: dict[str, str]) -> None:
    for _ in range(2):
        assert_runs(run(["sh", "-c", "umask 0; exec ./agent --version"], environment, place))
    assert (place / "state").stat().st_mode & 0o7777 == 0o711
    for path in (place / "state/runtime", *(place / "state/runtime").rglob("*")):
        assert path.stat().st_mode & 0o7777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("part", ["runtime", "runtime/*-cpython-*"])
@pytest.mark.parametrize("harm", ["written by others", "another's", "a link"])
def test_folder_that_another_may_write_is_refused(
    file: Path, place: Path, settled: Path, environment: dict[str, str], part: str, harm: str
) -> None:
    (folder,) = settled.glob(part)
    if harm == "written by others":
        folder.chmod(0o770)
    elif harm == "another's":
        os.chown(folder, NOBODY, NOBODY)
    else:
        folder.rename(place / "elsewhere")
        folder.symlink_to(place / "elsewhere")
    assert_sentence(run([file, "--version"], environment, place), str(folder), "choose another place")


def test_root_needs_no_home(file: Path, place: Path, environment: dict[str, str]) -> None:
    for home in ({}, {"HOME": ""}, {"HOME": "/nowhere"}, {"HOME": "relative"}):
        assert_runs(run([file, "--version"], {**environment, **home}, place))
    assert sorted(path.name for path in place.iterdir()) == ["agent", "state"]


def test_other_users_have_a_cache_of_their_own(file: Path, place: Path, home: Path) -> None:
    for _ in range(2):
        assert_runs(run([file, "--version", "--state", "/nowhere"], {"HOME": str(home)}, place, NOBODY))
    cache = home / ".cache/mesh-agent"
    assert cache.stat().st_mode & 0o7777 == 0o700
    assert (cache / "python").read_text() == f"{Path(sys.executable).resolve()}\n" or (cache / "python").exists()
    other = home / "elsewhere"
    assert_runs(run([file, "--version"], {"HOME": "/nowhere", "XDG_CACHE_HOME": str(other)}, place, NOBODY))
    assert (other / "mesh-agent").is_dir()


@pytest.mark.parametrize("environment", [{}, {"HOME": ""}, {"HOME": "/nowhere"}, {"XDG_CACHE_HOME": "relative"}])
def test_user_without_a_home_is_told(file: Path, place: Path, environment: dict[str, str]) -> None:
    assert_sentence(run([file, "--version"], environment, place, NOBODY), "choose another place with XDG_CACHE_HOME")
    assert_sentence(run([file, "--version"], environment, place, 54321), "XDG_CACHE_HOME")


@pytest.mark.parametrize("options", ["ro", "noexec"])
def test_home_where_nothing_can_be_kept_or_run_is_told(file: Path, place: Path, home: Path, options: str) -> None:
    command = mounted(f"{options},mode=777", home, *as_nobody(file, "--version"))
    assert_sentence(run(command, {"HOME": str(home)}, place), str(home), "another place with XDG_CACHE_HOME")
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    os.chown(elsewhere, NOBODY, NOBODY)
    assert_runs(run(command, {"HOME": str(home), "XDG_CACHE_HOME": str(elsewhere)}, place))


@pytest.mark.parametrize("options", ["ro", "noexec", "size=1m"])
def test_state_where_nothing_can_be_kept_or_run_is_told(
    file: Path, place: Path, environment: dict[str, str], options: str
) -> None:
    (place / "state").mkdir(mode=0o711)
    command = mounted(f"{options},mode=711", place / "state", file, "--version")
    assert_sentence(run(command, environment, place), str(place / "state"), "another place with --state or AGENT_STATE")


def test_unpacked_code_runs_where_nothing_can_be_written(
    file: Path, place: Path, settled: Path, environment: dict[str, str]
) -> None:
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", settled, file, "--version"]
    assert_runs(run(command, environment, place))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("site-packages/nacl/_sodium.abi3.so", 4096),
        ("site-packages/agent/cli/__pycache__/version.*.pyc", 0),
        ("complete", 0),
    ],
)
def test_damaged_code_is_unpacked_again(
    file: Path, place: Path, settled: Path, environment: dict[str, str], name: str, size: int
) -> None:
    (code,) = settled.glob("runtime/*-cpython-*")
    (path,) = code.glob(name)
    os.truncate(path, size)
    assert not is_complete(str(code))
    assert_runs(run([file, "--version"], environment, place))
    assert is_complete(str(code))
    assert len(builds(settled)) == 1


def test_all_of_it_is_on_the_disk_before_it_is_there(file: Path, place: Path, environment: dict[str, str]) -> None:
    log = place / "log"
    calls = ["strace", "-f", "-y", "-qq", "-e", "trace=fsync,rename", "-e", "signal=none", "-o", log]
    assert_runs(run([*calls, file, "--version"], environment, place))
    lines = log.read_text().splitlines()
    (renamed,) = (
        at for at, line in enumerate(lines) if "rename(" in line and '.part", ' in line and "-cpython-" in line
    )
    (code,) = (place / "state/runtime").glob("*-cpython-*")
    flushed = {match[1] for line in lines[:renamed] if (match := re.search(r"fsync\(\d+<(.*)>\) += 0", line))}
    assert flushed >= {f"{code}.part", *(f"{code}.part/{path.relative_to(code)}" for path in code.rglob("*"))}
    assert f"<{code.parent}>) = 0" in " ".join(lines[renamed:]).replace("  ", " ")


def test_many_first_starts_at_once(file: Path, place: Path, environment: dict[str, str]) -> None:
    started = [
        subprocess.Popen(
            [file, "--version"],
            env={"PATH": os.environ["PATH"], **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for _ in range(20)
    ]
    said = {process.communicate()[0] for process in started}
    assert len(said) == 1, said
    assert {process.returncode for process in started} == {0}
    assert {path.name for path in (place / "state/runtime").iterdir() if path.is_file()} == {"lock", "python"}


def test_this_build_and_the_one_before_are_kept(file: Path, place: Path, environment: dict[str, str]) -> None:
    state = place / "state"
    files = {name: other_build(file, name) for name in ("one", "two", "three")}
    for name, kept in (
        ("one", {"one"}),
        ("two", {"one", "two"}),
        ("three", {"two", "three"}),
        ("two", {"two", "three"}),
        ("one", {"one", "two"}),  # two was used after three
    ):
        assert_runs(run([files[name], "--version"], environment, place))
        assert builds(state) == kept


@pytest.fixture
def waiting(file: Path, place: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """An agent of the build `old` that runs, waiting for a token on its standard input."""
    command = [other_build(file, "old"), "up", "--token-file", "-"]
    everything = {"PATH": os.environ["PATH"], **environment}
    process = subprocess.Popen(command, env=everything, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: (place / "state/runtime").exists() and builds(place / "state") == {"old"}, 30)
    yield process
    process.kill()
    process.communicate()


def test_code_that_an_agent_runs_from_is_kept(
    file: Path, place: Path, environment: dict[str, str], waiting: subprocess.Popen[bytes]
) -> None:
    state = place / "state"
    one, two, three = (other_build(file, name) for name in ("one", "two", "three"))
    for build in (one, two, three):
        assert_runs(run([build, "--version"], environment, place))
    assert builds(state) == {"old", "two", "three"}
    # What it loads only now is still there: it says what is wrong with the token.
    _, said = waiting.communicate(b"no token\n")
    assert b"token" in said, said
    assert b"error of the agent's own" not in said, said
    assert_runs(run([one, "--version"], environment, place))
    assert builds(state) == {"three", "one"}


@pytest.mark.parametrize("content", ["file", "runtime"])
def test_folder_of_somebody_else_is_left_as_it_is(file: Path, place: Path, content: str) -> None:
    theirs = place / "theirs"
    (theirs / "runtime").mkdir(parents=True)
    (theirs / "letters").touch()
    if content == "file":
        (theirs / "runtime").rmdir()
    for words in (["--version"], ["status"], ["up", "--once"]):
        done = run([file, *words], {"AGENT_STATE": str(theirs)}, place)
        assert_sentence(done, f'{theirs} holds "letters"', "choose an empty or a new one with --state")
    assert sorted(path.name for path in theirs.rglob("*")) == sorted({"letters", content} - {"file"})


def test_folder_that_is_there_and_empty_is_taken(file: Path, place: Path, environment: dict[str, str]) -> None:
    (place / "state").mkdir(mode=0o711)
    assert_runs(run([file, "--version"], environment, place))


def test_file_that_was_moved_uses_the_same_code(
    file: Path, place: Path, settled: Path, environment: dict[str, str]
) -> None:
    (code,) = settled.glob("runtime/*-cpython-*")
    inode = code.stat().st_ino
    assert_runs(run([file.rename(place / "moved"), "--version"], environment, place))
    assert (code.stat().st_ino, len(builds(settled))) == (inode, 1)
