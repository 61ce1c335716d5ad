"""Where the built file starts: every Python and system found; where it can't, it says in a sentence what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.built import roots
from tests.built.roots import Root
from tests.built.starting import NOBODY, VECTORS, assert_runs, assert_sentence, run, signing

PLATFORMS = {
    "aarch64-glibc": "AArch64",
    "aarch64-musl": "AArch64",
    "x86_64-glibc": "Advanced Micro Devices X86-64",
    "x86_64-musl": "Advanced Micro Devices X86-64",
}
TAGS = ["cp310", "cp311", "cp312", "cp313", "cp314"]
VERIFIED = f"verified {len(json.loads(VECTORS.read_text()))}\n"


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    """Where systems are laid out; all of them together are as big as a few hundred files like this one's."""
    with tempfile.TemporaryDirectory(prefix="mesh-agent-roots-", dir="/var/lib") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def bare(ground: Path, built_file: Path) -> Root:
    """A Debian without Python."""
    root = roots.debian(ground / "bare")
    root.put(built_file)
    return root


@pytest.fixture
def whole(ground: Path, built_file: Path) -> Iterator[Root]:
    """A Debian with Python, for one test."""
    root = roots.debian(ground / "whole", "python3")
    root.put(built_file)
    yield root
    shutil.rmtree(root.path)


def pythons() -> dict[str, Path]:
    """A CPython of each version that the file is for, as far as this machine has them."""
    places = [Path("/usr/bin"), Path("/usr/local/bin"), *sorted(Path.home().glob(".pyenv/versions/*/bin"))]
    found = {}
    for minor in range(10, 15):
        for place in places:
            path = place / f"python3.{minor}"
            if path.exists():
                found[path.name] = path
    return found


# Which of Debian's releases has which Python; what this machine has itself isn't fetched.
OF_DEBIAN = {"python3.13": "trixie", "python3.14": "testing"}


def named(folder: Path, **programs: Path) -> str:
    """A PATH of one folder that has the shell's own programs, and these by name."""
    folder.mkdir()
    for name, path in {**programs, **{name: Path(str(shutil.which(name))) for name in ("tail", "find")}}.items():
        (folder / name.replace("_", ".")).symlink_to(path)
    return str(folder)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_every_python_found_runs_it(file: Path, place: Path) -> None:
    found = pythons()
    assert len({*found, *OF_DEBIAN}) >= 3, found
    for name, python in found.items():
        environment = {"AGENT_STATE": str(place / name), "PATH": named(place / f"{name}-bin", **{name: python})}
        said = assert_runs(run([file, "--version"], environment, place))
        assert re.search(rf", Python {name.removeprefix('python')}\.\d", said)
        assert_runs(run([file, "bundle", "verify"], environment, place))
        (code,) = (place / name / "runtime").glob("*/site-packages")
        assert assert_runs(run(signing([python], code), {}, place)) == VERIFIED


SHELLS = pytest.mark.parametrize(
    "shell", [["sh"], ["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"]], ids="-".join
)


@SHELLS
def test_shell_that_reads_it_from_its_input_is_told(file: Path, place: Path, shell: list[str]) -> None:
    for how in ('exec "$@" <"$0"', 'cat "$0" | "$@" -s up'):
        done = run(["sh", "-c", how, file, *shell], {"AGENT_STATE": str(place / "state")}, place)
        assert_sentence(done, "a shell can't read this from its input: copy the file here")
    assert not (place / "state").exists()


@SHELLS
def test_every_shell_reads_its_first_lines(file: Path, place: Path, settled: Path, shell: list[str]) -> None:
    environment = {"AGENT_STATE": str(settled)}
    (place / "sub").mkdir()
    assert_runs(run([*shell, file, "--version"], environment, place))
    assert_runs(run([*shell, "agent", "--state", settled, "--version"], {}, place))
    assert_runs(run([*shell, "../agent", "--state=../state", "--version"], {}, place / "sub"))
    (settled / "runtime/python").unlink()
    assert_runs(run([*shell, file, "--version"], environment, place))
    (settled / "runtime/python").unlink()
    environment["PATH"] = named(place / "bin")
    done = run([str(shutil.which(shell[0])), *shell[1:], file, "--version"], environment, place)
    assert_sentence(done, "there is none on PATH that works")
    assert sorted(path.name for path in place.iterdir()) == ["agent", "bin", "state", "sub"]


def test_system_without_python_is_told_how_to_get_one(bare: Root) -> None:
    done = bare.run("/root/agent", "--version")
    assert_sentence(done, "there is none on PATH that works: install", "`apt-get install python3`")
    assert not (bare.path / "var/lib/mesh-agent").exists()


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ("ID=debian\nVERSION_ID=12", "apt-get install python3"),
        ("ID=debian\nVERSION_ID=11", None),
        ("ID=debian", "apt-get install python3"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"', "apt-get install python3"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="20.04"', None),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22"', "apt-get install python3"),
        ("ID=fedora\nVERSION_ID=42", "dnf install python3"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"', "dnf install python3.11"),
        ('ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="10.0"', "dnf install python3"),
        ('ID="centos"\nID_LIKE="rhel fedora"\nVERSION_ID="7"', None),
        ('ID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"', "dnf install python3.11"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="15.6"', "zypper install python311"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\nVERSION_ID="20260101"', "zypper install python3"),
        ("ID=alpine\nVERSION_ID=3.20.1", "apk add python3"),
        ("ID=alpine\nVERSION_ID=3.15.0", None),
        ("ID=arch", "pacman -S python"),
        ("ID=unheard-of", None),
        (None, None),
    ],
)
def test_command_is_this_distributions(bare: Root, release: str | None, command: str | None) -> None:
    place = bare.path / "etc/os-release"
    place.unlink(missing_ok=True)
    if release is not None:
        place.write_text(release + "\n")
    done = bare.run("/root/agent", "--version")
    said = f": install one that fits with `{command}`." if command else ": install Python 3.10 to 3.14."
    assert_sentence(done, said)


def test_incomplete_python_is_told_how_to_get_the_rest(ground: Path, built_file: Path) -> None:
    root = roots.debian(ground / "minimal", "python3-minimal")
    root.put(built_file)
    parts = ("/usr/bin/python3.", "lacks a part of Python's standard library", "json", "`apt-get install python3`")
    assert_sentence(root.run("/root/agent", "--version"), *parts)
    assert_sentence(root.run("/usr/bin/python3", "/root/agent", "--version"), "run /root/agent itself")
    assert not (root.path / "var/lib/mesh-agent").exists()


def test_whole_python_runs_it_and_one_that_is_no_longer_whole_is_told(whole: Root) -> None:
    for _ in range(2):
        assert_runs(whole.run("/root/agent", "--version"))
    whole.ask("/root/agent", "bundle", "verify")
    remembered = whole.path / "var/lib/mesh-agent/runtime/python"
    assert remembered.read_text().startswith("/usr/bin/python3.")
    (code,) = (whole.path / "var/lib/mesh-agent/runtime").glob("*/site-packages")
    assert whole.ask(*signing(["/usr/bin/python3"], "/" + str(code.relative_to(whole.path)))) == VERIFIED
    whole.ask("sh", "-c", "dpkg --force-all --remove $(dpkg-query -Wf '${Package} ' 'libpython3*-stdlib')")
    assert_sentence(whole.run("/root/agent", "--version"), "lacks a part", "`apt-get install python3`")
    assert not remembered.exists()


@pytest.mark.parametrize("name", sorted(set(OF_DEBIAN) - set(pythons())))
def test_python_of_debian_runs_it(ground: Path, built_file: Path, name: str) -> None:
    root = roots.laid_out(ground / name, [name], architecture="amd64", suite=OF_DEBIAN[name])
    root.put(built_file)
    said = assert_runs(root.run(f"/usr/bin/{name}", "/root/agent", "--version"))
    assert f", Python {name.removeprefix('python')}." in said
    (code,) = (root.path / "var/lib/mesh-agent/runtime").glob("*/site-packages")
    assert root.ask(*signing([f"/usr/bin/{name}"], "/" + str(code.relative_to(root.path)))) == VERIFIED


def test_other_machine_runs_it(ground: Path, file: Path, place: Path) -> None:
    root = roots.laid_out(ground / "arm64", ["python3"], architecture="arm64", suite=roots.release())
    python = ["qemu-aarch64-static", "-L", root.path, root.path / "usr/bin/python3"]
    environment = {"AGENT_STATE": str(place / "state")}
    for _ in range(2):
        assert assert_runs(run([*python, file, "--version"], environment, place)).endswith(", linux aarch64\n")
    (code,) = (place / "state/runtime").glob("*-aarch64-glibc/site-packages")
    assert assert_runs(run(signing(python, code), {}, place)) == VERIFIED
    # This machine's own Python uses the same folder, and is not handed the other one's code.
    assert ", linux x86_64\n" in assert_runs(run([file, "--version"], environment, place))


def test_machine_that_it_has_no_code_for_is_told(file: Path, place: Path) -> None:
    done = run(["setarch", "i686", file, "--version"], {"AGENT_STATE": str(place / "state")}, place)
    assert_sentence(done, "this machine is i686", "native code for aarch64 and x86_64 alone")
    assert not (place / "state").exists()


def test_shim_that_fails_is_passed_over_and_one_that_works_is_used_once(file: Path, place: Path) -> None:
    python = Path(sys.executable).resolve()
    minor = sys.version_info[1]
    for name in ("shims", "later"):
        (place / name).mkdir()
    asked = place / "asked"
    script(place / "shims/python3.14", f"echo failing >>{asked}; echo 'no such version' >&2; exit 127")
    script(place / f"shims/python3.{minor}", f"echo failing >>{asked}; exit 127")
    script(place / f"later/python3.{minor}", f'echo working >>{asked}; exec {python} "$@"')
    environment = {
        "AGENT_STATE": str(place / "state"),
        "PATH": f"{place}/shims:{place}/later:{named(place / 'bin')}",
    }
    for _ in range(2):
        assert_runs(run([file, "--version"], environment, place))
    assert asked.read_text().split() == ["failing", "failing", "working"]
    assert (place / "state/runtime/python").read_text() == f"{python}\n"
    # One that has gone since is looked for anew.
    (place / "state/runtime/python").write_text(f"{place}/gone\n")
    assert_runs(run([file, "--version"], environment, place))
    assert (place / "state/runtime/python").read_text() == f"{python}\n"


@pytest.mark.parametrize("harm", ["mode", "owner", "folder's mode", "folder's owner", "link"])
def test_remembered_python_that_another_user_can_choose_is_not_run(
    file: Path, place: Path, settled: Path, harm: str
) -> None:
    ran, environment = place / "ran", {"AGENT_STATE": str(settled)}
    runtime, remembered = settled / "runtime", settled / "runtime/python"
    evil = script(place / "evil", f"touch {ran}")
    remembered.write_text(f"{evil}\n")
    if harm == "mode":
        remembered.chmod(0o666)
    elif harm == "owner":
        os.chown(remembered, NOBODY, NOBODY)
    elif harm == "folder's mode":
        runtime.chmod(0o770)
    elif harm == "folder's owner":
        os.chown(runtime, NOBODY, NOBODY)
    else:
        remembered.rename(place / "elsewhere")
        remembered.symlink_to(place / "elsewhere")
    done = run([file, "--version"], environment, place)
    assert not ran.exists()
    if harm.startswith("folder"):
        assert_sentence(done, "who could change the code that runs from it")
    else:
        assert_runs(done)
        assert str(evil) not in remembered.read_text()


def test_every_platform_is_in_it(built_file: Path) -> None:
    assert built_file.stat().st_size <= 12_000_000
    with zipfile.ZipFile(built_file) as archive:
        natives = json.loads(archive.read("build.json"))["natives"]
        names = [name for name in archive.namelist() if name.startswith("native/")]
    assert natives == [f"{platform}/{tag}" for platform in sorted(PLATFORMS) for tag in TAGS]
    for platform in PLATFORMS:
        for tag in TAGS:
            assert len([name for name in names if name.startswith(f"native/{platform}/{tag}/_cffi_backend.")]) == 1
        assert f"native/{platform}/abi3/nacl/_sodium.abi3.so" in names
    assert len(names) == len(PLATFORMS) * (len(TAGS) + 1)


def test_native_code_needs_what_each_platform_has(built_file: Path, place: Path) -> None:
    with zipfile.ZipFile(built_file) as archive:
        names = [name for name in archive.namelist() if name.startswith("native/")]
        archive.extractall(place, names)
    for name in names:
        platform = name.split("/")[1]
        # A library that every file of its kind is loaded with: a program's interpreter is none's to ask for.
        facts = subprocess.run(
            ["readelf", "--wide", "--file-header", "--program-headers", "--dynamic", "--version-info", place / name],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert re.search(r"Machine: +(.*)", facts)[1] == PLATFORMS[platform], name  # type: ignore[index]
        assert re.search(r"Type: +DYN ", facts), name
        assert " INTERP " not in facts, name
        assert "RPATH" not in facts, name
        needed = set(re.findall(r"\(NEEDED\) +Shared library: \[(.*?)\]", facts))
        versions = {tuple(map(int, one.split("."))) for one in re.findall(r"Name: GLIBC_([\d.]+)", facts)}
        if platform.endswith("-musl"):
            assert needed <= {"libc.so", f"libc.musl-{platform.removesuffix('-musl')}.so.1"}, name
            assert not versions, name
        else:
            assert needed <= {"libc.so.6", "libpthread.so.0", "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2"}, name
            assert max(versions) <= (2, 17), name
