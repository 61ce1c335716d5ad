"""The built file, as it starts on machines that nobody prepared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agent import __version__
from agent.bundle import open_bundle, verify
from tests.built.conftest import ROOT
from tests.built.starting import NOBODY, assert_sentence, run
from tests.built.test_reach import named


def test_starts_and_says_what_it_is(file: Path, place: Path) -> None:
    for _ in range(2):
        done = run([file, "--version"], {"AGENT_STATE": str(place / "state")}, place)
        assert (done.returncode, done.stderr) == (0, "")
        assert __version__ in done.stdout
    assert (place / "state").stat().st_mode & 0o7777 == 0o711
    assert (place / "state/runtime").stat().st_mode & 0o7777 == 0o700
    assert sorted(path.name for path in place.iterdir()) == ["agent", "state"]


def test_starts_by_whatever_path(file: Path, place: Path) -> None:
    environment = {"AGENT_STATE": "state"}
    (place / "sub").mkdir()
    (place / "link").symlink_to("agent")
    for command, cwd in (
        (["./agent"], place),
        (["../agent"], place / "sub"),
        (["sub/../link"], place),
        (["sh", "agent"], place),
        ([sys.executable, "./agent"], place),
        ([sys.executable, "-I", "-S", "../agent"], place / "sub"),
    ):
        done = run([*command, "--version"], environment, cwd)
        assert (done.returncode, done.stderr) == (0, ""), command


@pytest.mark.parametrize("name", [b"two\nlines '\"$(x)`y`* %s", b"-dash", b"not \xff UTF-8"])
def test_starts_under_whatever_name(file: Path, place: Path, settled: Path, name: bytes) -> None:
    folder = place / os.fsdecode(name)
    folder.mkdir()
    shutil.copy(file, folder / "agent")
    shutil.copy(file, folder / "-agent")
    (folder / "state").symlink_to(settled)
    environment = {"AGENT_STATE": "state", "PATH": f".:{os.environ['PATH']}"}
    for command in (
        [folder / "agent"],
        ["agent"],
        ["-agent"],
        ["sh", "--", "-agent"],
        [sys.executable, "--", "-agent"],
    ):
        (settled / "runtime/python").unlink(missing_ok=True)
        for _ in range(2):
            done = run([*command, "--version"], environment, folder)
            assert (done.returncode, done.stderr) == (0, ""), command


@pytest.mark.parametrize("remembered", [True, False])
def test_starts_without_what_a_shell_gives(file: Path, place: Path, settled: Path, remembered: bool) -> None:
    gone = place / "gone"
    for before, said in (
        ("exec <&-", True),
        ("exec >&-", False),
        ("exec 2>&-", True),
        ("exec <&- >&- 2>&-", False),
        ("unset PATH", True),
        (f"mkdir {gone}; cd {gone}; rmdir {gone}", True),
    ):
        if not remembered:
            (settled / "runtime/python").unlink(missing_ok=True)
        script = f'{before}; exec "$0" --version'
        done = run(["sh", "-c", script, file], {"AGENT_STATE": str(settled)}, place)
        assert (done.returncode, done.stdout.startswith("agent ")) == (0, said), (before, done.stderr)


def test_relative_state_from_a_folder_that_is_gone_is_told(file: Path, place: Path) -> None:
    home = place / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    for user, said in ((None, "there leads nowhere: give an absolute path"), (NOBODY, "give its absolute path")):
        script = 'mkdir gone; cd gone; rmdir ../gone; exec "$0" --state there status'
        done = run(["sh", "-c", script, file], {"XDG_CACHE_HOME": str(home)}, home, user)
        assert done.returncode == 1
        # The shell has a word of its own before.
        assert re.fullmatch(rf"agent: the folder .*{said}.*", done.stderr.splitlines()[-1]), done.stderr


def test_state_option_says_where_it_unpacks(file: Path, place: Path) -> None:
    run([file, "--version", f"--state={place}/there"], {"AGENT_STATE": str(place / "state")}, place)
    assert sorted(path.name for path in place.iterdir()) == ["agent", "there"]


def test_carries_a_whole_bundle_and_none_of_the_builders_folders(file: Path) -> None:
    verify(open_bundle(file))
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            beginning = ("__main__.py", "unpacking.py", "build.json")
            assert name in beginning or name.startswith(("site-packages/", "native/", "bundle/"))
            assert not name.startswith(("site-packages/bin/", "site-packages/agent/bundles/"))
            assert os.fsencode(ROOT) not in archive.read(name), name


def test_environment_and_working_folder_choose_no_code(file: Path, place: Path) -> None:
    evil = place / "evil"
    (evil / "agent").mkdir(parents=True)
    for name in ("agent/__init__.py", "json.py", "zipfile.py", "sitecustomize.py"):
        (evil / name).write_text("raise SystemExit('this ran')\n")
    environment = {
        "AGENT_STATE": str(place / "state"),
        "PYTHONPATH": str(evil),
        "PYTHONSTARTUP": str(evil / "json.py"),
        "SHIV_INTERPRETER": "1",
        "SHIV_ROOT": str(evil),
    }
    done = run([file, "--version"], environment, evil)
    assert (done.returncode, done.stderr) == (0, "")
    # Given to a Python by hand, one that has not been told to ignore its environment.
    del environment["PYTHONPATH"]
    done = run([sys.executable, "../agent", "--version"], environment, evil)
    assert (done.returncode, done.stderr) == (0, "")


def test_file_cut_short_is_told(file: Path, place: Path) -> None:
    content = file.read_bytes()
    for length in (1000, len(content) // 2, len(content) - 22, len(content) - 1):
        file.write_bytes(content[:length])
        done = run([file, "--version"], {"AGENT_STATE": str(place / "state")}, place)
        assert_sentence(done, "is incomplete: copy it here again")
    assert not (place / "state").exists()


def test_changed_byte_is_told(file: Path, place: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        member = archive.getinfo("site-packages/agent/errors.py")
    content = bytearray(file.read_bytes())
    content[member.header_offset + 30 + len(member.filename) + 20] ^= 0xFF
    file.write_bytes(content)
    done = run([file, "--version"], {"AGENT_STATE": str(place / "state")}, place)
    assert_sentence(done, f"{file} is damaged")


def test_state_that_is_a_file_is_told(file: Path, place: Path) -> None:
    (place / "state").touch()
    for state in ("state", "state/below"):
        done = run([file, "--version"], {"AGENT_STATE": str(place / state)}, place)
        assert_sentence(done, str(place / "state"))


def old_pythons() -> list[Path]:
    """Pythons too old for the agent that this machine happens to have."""
    found = [shutil.which(f"python3.{minor}") for minor in (6, 7, 8, 9)]
    kept = Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python3")
    paths = [Path(name) for name in found if name] + list(kept)
    return [path for path in paths if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]


def test_old_pythons_say_so(file: Path, place: Path) -> None:
    for python in old_pythons():
        done = run([python, file, "--version"], {"AGENT_STATE": str(place / "state")}, place)
        assert_sentence(done, "needs Python 3.10 or newer")
        # Alone on PATH, the file finds that one and no other.
        environment = {"AGENT_STATE": str(place / "state"), "PATH": named(place / python.parts[-3], python3=python)}
        done = run([file, "--version"], environment, place)
        assert_sentence(done, "needs Python 3.10 or newer, and /", ": install one that fits with `")
    assert not (place / "state").exists()
