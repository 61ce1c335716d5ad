from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.host import entries, files
from tests.marked import mark_of

NOBODY = pwd.getpwnam("nobody")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_write_makes_content_mode_and_owner(ground: Path) -> None:
    path = ground / "a"
    files.write(path, b"hello", mode=0o4750, uid=NOBODY.pw_uid, gid=NOBODY.pw_gid)
    status = path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o4750, NOBODY.pw_uid, NOBODY.pw_gid)
    assert path.read_bytes() == b"hello"
    assert names(ground) == {"a"}


def test_write_replaces_the_file_and_not_what_is_linked_to_it(ground: Path) -> None:
    path, other = ground / "a", ground / "b"
    path.write_bytes(b"old")
    os.link(path, other)
    files.write(path, iter([b"n", b"ew"]), mode=0o600, uid=0, gid=0)
    assert files.read(path) == b"new"
    assert other.read_bytes() == b"old"


def test_write_that_fails_keeps_the_old_file_and_leaves_nothing(ground: Path) -> None:
    path = ground / "a"
    path.write_bytes(b"old")

    def broken() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(Unavailable, match=rf"Writing {path} failed: the disk is full"):
        files.write(path, broken(), mode=0o644, uid=0, gid=0)
    assert path.read_bytes() == b"old"
    assert names(ground) == {"a"}


def test_a_device_is_never_replaced() -> None:
    with pytest.raises(Refused, match="is a device, not a file"):
        files.write(Path("/dev/full"), b"x", mode=0o644, uid=0, gid=0)


def test_write_cleans_what_a_killed_write_left(ground: Path) -> None:
    left_over = ground / ".mesh-agent.0123456789abcdef.tmp"
    left_over.write_bytes(b"half")
    files.write(ground / "a", b"x", mode=0o644, uid=0, gid=0)
    assert names(ground) == {"a"}


def test_write_leaves_a_write_that_is_under_way(ground: Path) -> None:
    def nested() -> Iterator[bytes]:
        yield b"outer"
        files.write(ground / "inner", b"inner", mode=0o644, uid=0, gid=0)

    files.write(ground / "outer", nested(), mode=0o644, uid=0, gid=0)
    assert files.read(ground / "outer") == b"outer"
    assert names(ground) == {"inner", "outer"}


def test_write_needs_the_parent(ground: Path) -> None:
    with pytest.raises(Unavailable, match=rf"failed: {ground}/no is not there"):
        files.write(ground / "no" / "a", b"x", mode=0o644, uid=0, gid=0)


@pytest.mark.parametrize("path", ["relative", "/", "/var/../etc/a"])
def test_a_path_must_be_absolute_and_normal(path: str) -> None:
    with pytest.raises(Refused, match="is not an absolute path"):
        files.read(Path(path))


def test_a_link_on_the_way_is_refused_with_its_target(ground: Path) -> None:
    (ground / "real").mkdir()
    (ground / "link").symlink_to("real")
    with pytest.raises(Refused, match=rf"{ground}/link is a symbolic link \(to real\)"):
        files.write(ground / "link" / "a", b"x", mode=0o644, uid=0, gid=0)
    assert names(ground / "real") == set()


def test_a_file_on_the_way_is_refused(ground: Path) -> None:
    (ground / "file").write_bytes(b"")
    with pytest.raises(Refused, match=rf"{ground}/file is not a directory"):
        files.read(ground / "file" / "a")


@pytest.mark.parametrize("there", ["link", "directory", "pipe"])
def test_what_is_no_file_is_neither_replaced_nor_removed(ground: Path, there: str) -> None:
    path = ground / "a"
    if there == "link":
        path.symlink_to("elsewhere")
    elif there == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(Refused, match="not a file"):
        files.write(path, b"x", mode=0o644, uid=0, gid=0)
    with pytest.raises(Refused, match="not a file"):
        files.remove(path)
    with pytest.raises(Refused, match="not a file"):
        files.read(path)
    assert names(ground) == {"a"}


def test_a_parent_of_another_user_is_refused_unless_that_user_is_the_owner(ground: Path) -> None:
    home = ground / "home"
    home.mkdir()
    os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
    with pytest.raises(Refused, match=rf"{home} belongs to user {NOBODY.pw_uid}"):
        files.write(home / "a", b"x", mode=0o644, uid=0, gid=0)
    files.write(home / "a", b"x", mode=0o644, uid=NOBODY.pw_uid, gid=0)
    assert files.read(home / "a", uid=NOBODY.pw_uid) == b"x"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_parent_that_others_can_write_is_refused(ground: Path, mode: int) -> None:
    shared = ground / "shared"
    shared.mkdir()
    os.chown(shared, 0, NOBODY.pw_gid)
    shared.chmod(mode)
    with pytest.raises(Refused, match=rf"{shared} can be written by other users") as refused:
        files.write(shared / "a", b"x", mode=0o644, uid=0, gid=0)
    # What is everybody's on purpose, as /tmp is, is to stay so.
    assert (f"chmod go-w {shared}" in str(refused.value)) == (mode != 0o1777)
    with pytest.raises(Refused, match="can be written by other users"):
        files.write(shared / "a", b"x", mode=0o644, uid=NOBODY.pw_uid, gid=0)


def test_a_sticky_directory_is_passed_through_to_a_trusted_one(ground: Path) -> None:
    shared = ground / "shared"
    (shared / "ours").mkdir(parents=True)
    (shared / "theirs").mkdir()
    os.chown(shared / "theirs", NOBODY.pw_uid, 0)
    shared.chmod(0o1777)
    files.write(shared / "ours" / "a", b"x", mode=0o644, uid=0, gid=0)
    with pytest.raises(Refused, match="belongs to user"):
        files.write(shared / "theirs" / "a", b"x", mode=0o644, uid=0, gid=0)
    shared.chmod(0o777)
    with pytest.raises(Refused, match="can be written by other users"):
        files.write(shared / "ours" / "a", b"x", mode=0o644, uid=0, gid=0)


def test_a_big_file_is_read_and_copied_in_pieces(ground: Path) -> None:
    content = os.urandom(2_500_000)
    files.write(ground / "a", content, mode=0o644, uid=0, gid=0)
    assert len(list(files.chunks(ground / "a"))) == 3
    files.write(ground / "b", files.chunks(ground / "a"), mode=0o644, uid=0, gid=0)
    assert files.read(ground / "b") == content


def test_what_is_absent_reads_as_none_but_has_no_chunks(ground: Path) -> None:
    assert files.read(ground / "a") is None
    with pytest.raises(Unavailable, match="a is not there"):
        list(files.chunks(ground / "a"))


def test_remove_says_whether_there_was_a_file(ground: Path) -> None:
    files.write(ground / "a", b"x", mode=0o644, uid=0, gid=0)
    (ground / ".mesh-agent.left.tmp").write_bytes(b"half")
    assert files.remove(ground / "a")
    assert not files.remove(ground / "a")
    assert not files.remove(ground / "no" / "a")
    assert names(ground) == set()


def test_marks_come_and_go_with_the_file(ground: Path) -> None:
    path = ground / "a"
    files.write(path, b"x", mode=0o644, uid=0, gid=0, mark=b"ours")
    assert mark_of(path) == b"ours"
    files.write(path, b"x", mode=0o644, uid=0, gid=0, mark=b"changed")
    assert mark_of(path) == b"changed"
    files.write(path, b"y", mode=0o644, uid=0, gid=0)
    assert mark_of(path) is None


def test_a_file_is_written_where_there_can_be_no_mark(ground: Path) -> None:
    subprocess.run(["mount", "-t", "ramfs", "none", ground], check=True)
    try:
        files.write(ground / "a", b"x", mode=0o644, uid=0, gid=0, mark=b"ours")
        assert (ground / "a").read_bytes() == b"x"
        with (ground / "a").open("rb") as file:
            assert entries.mark(file.fileno()) is None
            entries.unmark(file.fileno())
    finally:
        subprocess.run(["umount", ground], check=True)


def test_a_copy_is_another_file_of_the_same_content(ground: Path) -> None:
    source, path = ground / "source", ground / "copy"
    content = os.urandom(3_000_000)
    source.write_bytes(content)
    path.write_bytes(b"old")
    files.copy(source, path, mode=0o755, uid=0, gid=0)
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    source.write_bytes(b"changed in its place")
    assert path.read_bytes() == content
    assert names(ground) == {"source", "copy"}
    with pytest.raises(Unavailable, match=r"Copying .*/none failed: .*/none is not there"):
        files.copy(ground / "none", path, mode=0o755, uid=0, gid=0)
    assert path.read_bytes() == content


def test_a_file_that_is_moved_replaces_what_is_there(ground: Path) -> None:
    (ground / "below").mkdir()
    source, path = ground / "below" / "new", ground / "a"
    source.write_bytes(b"new")
    path.write_bytes(b"old")
    files.move(source, path)
    assert path.read_bytes() == b"new"
    assert not source.exists()
    (ground / "folder").mkdir()
    with pytest.raises(Refused, match="is a directory"):
        files.move(path, ground / "folder")
    assert path.read_bytes() == b"new"
