"""The start-up code: where it unpacks, whom it trusts, and that what is unpacked is whole."""

from __future__ import annotations

import ast
import os
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from agent import start, unpacking
from agent.errors import Refused
from agent.node import folder as node_folder

PLATFORM = "x86_64-glibc"
NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An archive with a little code in it."""
    path = tmp_path / "file"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", "")
        archive.writestr("site-packages/one/__init__.py", "ONE = 1\n" * 100)
        archive.writestr("site-packages/one/broken.py", "not python at all\n")
        archive.writestr("site-packages/one/data.txt", "some data")
        archive.writestr("site-packages/../../outside.py", "")
    return path


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    path = tmp_path / "runtime"
    path.mkdir(mode=0o700)
    return path


def settle(file: Path, runtime: Path) -> Path:
    def unpack(folder: str) -> None:
        unpacking.unpack(str(file), folder, PLATFORM, start.python_tag())

    return Path(start.settle("b1", str(runtime), PLATFORM, unpack))


@pytest.mark.parametrize(
    ("arguments", "environment", "state"),
    [
        ([], {}, "/var/lib/mesh-agent"),
        (["up"], {"AGENT_STATE": "/a"}, "/a"),
        (["up"], {"AGENT_STATE": ""}, "/var/lib/mesh-agent"),
        (["up", "--state", "/b"], {"AGENT_STATE": "/a"}, "/b"),
        (["--state=/c", "up"], {"AGENT_STATE": "/a"}, "/c"),
        (["--state", "/b", "--state=/c"], {}, "/c"),
        (["--", "--state", "/b"], {"AGENT_STATE": "/a"}, "/a"),
        (["up", "--state"], {"AGENT_STATE": "/a"}, "/a"),
        (["--state", "/b/../c//d/"], {}, "/c/d"),
    ],
)
def test_state_folder(arguments: list[str], environment: dict[str, str], state: str) -> None:
    assert start.state_folder(arguments, environment) == state


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/mesh-agent"),
        ({"XDG_CACHE_HOME": "c", "HOME": "/h"}, "/h/.cache/mesh-agent"),
        ({"HOME": "/h"}, "/h/.cache/mesh-agent"),
        ({}, os.path.expanduser("~root") + "/.cache/mesh-agent"),  # noqa: PTH111
    ],
)
def test_cache_folder(environment: dict[str, str], folder: str) -> None:
    assert start.cache_folder(environment) == folder


def test_old_python_is_told() -> None:
    start.check_python((3, 10, 0), "/usr/bin/python3")
    with pytest.raises(start.Lacking, match=r"needs Python 3\.10 or newer, and /usr/bin/python3 is Python 3\.9\.18"):
        start.check_python((3, 9, 18), "/usr/bin/python3")


def test_incomplete_python_is_told() -> None:
    start.check_modules(start.NEEDED, sys.executable)
    with pytest.raises(start.Lacking, match=r"lacks .*\(no_such_module\)"):
        start.check_modules(("json", "sys", "no_such_module"), sys.executable)


def natives(*platforms: str) -> list[str]:
    return [f"{platform}/cp3{minor}" for platform in platforms for minor in (10, 11, 12, 13, 14)]


def test_native_code_is_this_machines() -> None:
    machine = os.uname().machine
    assert start.check_native(natives(f"{machine}-glibc", f"{machine}-musl"), "python") == f"{machine}-{start.libc()}"
    with pytest.raises(start.Unfit, match=rf"this machine is {machine}, .* code for sparc and vax alone"):
        start.check_native(natives("vax-glibc", "sparc-musl"), "python")


def test_native_code_is_this_pythons() -> None:
    others = [name for name in natives(f"{os.uname().machine}-{start.libc()}") if not name.endswith(start.python_tag())]
    sentence = r"/p is cpython 3\.\d+, and this file carries native code for CPython 3\.10 to 3\.14 alone"
    with pytest.raises(start.UnfitPython, match=sentence):
        start.check_native(others, "/p")


@pytest.mark.parametrize("name", sorted(start.OURS | {"letters", "ledger.db", "ledger.db-wal"}))
def test_whose_a_folder_is_is_decided_as_the_agent_does(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    theirs = name in ("letters", "ledger.db-wal")
    if theirs:
        with pytest.raises(start.Unfit, match=f'{tmp_path} holds "{name}"'):
            start.refuse_foreign(str(tmp_path))
        with pytest.raises(Refused, match=f'{tmp_path} holds "{name}"'):
            node_folder.prepare(tmp_path)
    else:
        start.refuse_foreign(str(tmp_path))
        node_folder.prepare(tmp_path)


@pytest.mark.parametrize("module", [start, unpacking])
def test_its_syntax_is_that_of_old_pythons(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(), feature_version=(3, 6))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    # That future came with Python 3.7, and asking an older one for it is a syntax error.
    assert [node.module for node in imports if node.module == "__future__"] == []


def test_folder_of_ones_own_is_made_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "state"
    start.own_folder(str(path), 0o711)
    assert path.stat().st_mode & 0o7777 == 0o711
    path.chmod(0o700)
    start.own_folder(str(path), 0o711)
    assert path.stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o1702])
def test_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(start.Unfit, match=f"can be written by other users \\(mode {mode:04o}\\)"):
        start.own_folder(str(tmp_path), 0o700)


def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.mkdir(mode=0o700)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(start.Unfit, match="belongs to another user"):
        start.own_folder(str(path), 0o700)


def test_link_and_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(start.Unfit, match="is not a folder"):
            start.own_folder(str(tmp_path / name), 0o700)


def test_unpacks_once(file: Path, runtime: Path) -> None:
    folder = settle(file, runtime)
    assert folder == runtime / f"b1-{sys.implementation.cache_tag}-{PLATFORM}"
    assert folder.stat().st_mode & 0o7777 == 0o700
    code = folder / "site-packages"
    assert (code / "one/data.txt").read_text() == "some data"
    assert list((code / "one/__pycache__").iterdir())
    assert not list(runtime.parent.rglob("outside.py"))
    assert sorted(path.name for path in runtime.iterdir()) == [folder.name, "lock"]
    inode = folder.stat().st_ino
    assert settle(file, runtime) == folder
    assert folder.stat().st_ino == inode


@pytest.mark.parametrize("harm", ["shorten", "empty", "remove"])
@pytest.mark.parametrize("name", ["site-packages/one/__init__.py", "site-packages/one/__pycache__/*", "complete"])
def test_damage_is_noticed_and_mended(file: Path, runtime: Path, name: str, harm: str) -> None:
    folder = settle(file, runtime)
    (path,) = folder.glob(name)
    whole = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        os.truncate(path, 0 if harm == "empty" else len(whole) - 1)
    assert not start.is_complete(str(folder))
    settle(file, runtime)
    assert path.read_bytes() == whole
    assert sorted(path.name for path in runtime.iterdir()) == [folder.name, "lock"]


def test_what_a_killed_start_left_is_removed(file: Path, runtime: Path) -> None:
    for name in ("b1-x.part", "b1-x.damaged.part"):
        (runtime / name / "site-packages").mkdir(parents=True)
    folder = settle(file, runtime)
    assert sorted(path.name for path in runtime.iterdir()) == [folder.name, "lock"]


def test_many_first_starts_at_once(file: Path, runtime: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: settle(file, runtime).stat().st_ino, range(24)))
    assert len(set(folders)) == 1


def test_folder_put_there_by_another_is_refused(file: Path, runtime: Path) -> None:
    os.chown(settle(file, runtime), NOBODY, NOBODY)
    with pytest.raises(start.Unfit, match="belongs to another user"):
        settle(file, runtime)


def test_damaged_archive_is_told_and_leaves_nothing(file: Path, runtime: Path) -> None:
    content = bytearray(file.read_bytes())
    position = content.index(b"one/__init__.py") + len("one/__init__.py") + 5
    content[position] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        settle(file, runtime)
    assert not [path for path in runtime.iterdir() if (path / "complete").exists()]
