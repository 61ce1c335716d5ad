"""What is unpacked of the archive, and which builds' code is removed."""

from __future__ import annotations

import fcntl
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.unpacking import place_of, remove_older, unpack

TAG, PLATFORM = "cp312", "x86_64-musl"


@pytest.mark.parametrize(
    ("member", "place"),
    [
        ("site-packages/agent/cli/__init__.py", "site-packages/agent/cli/__init__.py"),
        ("native/x86_64-musl/abi3/nacl/_sodium.abi3.so", "site-packages/nacl/_sodium.abi3.so"),
        ("native/x86_64-musl/cp312/_cffi.cpython-312-x86_64-linux-musl.so", "site-packages/_cffi.so"),
        ("native/x86_64-musl/cp311/_cffi.cpython-311-x86_64-linux-musl.so", ""),
        ("native/x86_64-glibc/cp312/_cffi.cpython-312-x86_64-linux-gnu.so", ""),
        ("native/aarch64-musl/abi3/nacl/_sodium.abi3.so", ""),
        ("native/x86_64-musl", ""),
        ("site-packages/agent/", ""),
        ("site-packages/../outside.py", ""),
        ("native/x86_64-musl/cp312/../../outside.so", ""),
        ("site-packages-of-another/x.py", ""),
        ("bundle/bundle.toml", ""),
        ("__main__.py", ""),
        ("/site-packages/x.py", ""),
    ],
)
def test_place_of(member: str, place: str) -> None:
    assert place_of(member, PLATFORM, TAG) == place


def test_failure_leaves_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("site-packages/one.py", "ONE = 1\n")
        archive.writestr("site-packages/one.py/two.py", "TWO = 2\n")  # below a file
    (tmp_path / "runtime").mkdir()
    with pytest.raises(OSError, match="one"):
        unpack(str(file), str(tmp_path / "runtime/b"), PLATFORM, TAG)
    assert list((tmp_path / "runtime").iterdir()) == []


def code_of(runtime: Path, names: Sequence[str]) -> None:
    """Folders of code that were used one after the other."""
    for at, name in enumerate(names):
        (runtime / name).mkdir()
        (runtime / name / "complete").touch()
        os.utime(runtime / name / "complete", (at, at))


def left(runtime: Path) -> list[str]:
    return sorted(path.name for path in runtime.iterdir())


def test_build_that_was_used_last_is_kept_for_every_python(tmp_path: Path) -> None:
    code_of(tmp_path, ["a-py311-x", "b-py311-x", "c-py311-x", "b-py312-x", "d-py311-x", "d-py310-x"])
    for name in ("lock", "python"):
        (tmp_path / name).touch()
    remove_older(str(tmp_path), "d")
    assert left(tmp_path) == ["b-py311-x", "b-py312-x", "d-py310-x", "d-py311-x", "lock", "python"]


def test_code_in_use_is_kept(tmp_path: Path) -> None:
    code_of(tmp_path, ["a-x", "b-x", "c-x", "d-x"])
    with (tmp_path / "a-x/complete").open() as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        remove_older(str(tmp_path), "d")
        assert left(tmp_path) == ["a-x", "c-x", "d-x"]
    remove_older(str(tmp_path), "d")
    assert left(tmp_path) == ["c-x", "d-x"]


def test_damaged_code_is_removed(tmp_path: Path) -> None:
    code_of(tmp_path, ["a-x", "b-x", "c-x"])
    (tmp_path / "a-x/complete").unlink()
    (tmp_path / "a-x/rest").touch()
    remove_older(str(tmp_path), "c")
    assert left(tmp_path) == ["b-x", "c-x"]
