from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.host import directories
from tests.marked import mark_of

NOBODY = pwd.getpwnam("nobody")


def owned(path: Path) -> tuple[int, int, int]:
    """Its mode's permission bits, uid and gid."""
    status = path.lstat()
    return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_make_says_whether_it_made_and_mends_what_is_there(ground: Path) -> None:
    path = ground / "a"
    assert directories.make(path, mode=0o711, uid=0, gid=0, mark=b"ours")
    assert mark_of(path) == b"ours"
    assert not directories.make(path, mode=0o2750, uid=NOBODY.pw_uid, gid=NOBODY.pw_gid)
    assert owned(path) == (0o2750, NOBODY.pw_uid, NOBODY.pw_gid)
    assert mark_of(path) == b"ours"


def test_make_writes_nothing_of_what_is_so_already(ground: Path) -> None:
    asked = {"mode": 0o711, "uid": NOBODY.pw_uid, "gid": NOBODY.pw_gid}
    directories.make(ground / "a", **asked)
    changed = (ground / "a").stat().st_ctime_ns
    assert not directories.make(ground / "a", **asked)
    assert (ground / "a").stat().st_ctime_ns == changed


def test_make_refuses_a_link_in_its_place(ground: Path) -> None:
    (ground / "real").mkdir(mode=0o700)
    (ground / "a").symlink_to("real")
    with pytest.raises(Refused, match="is a symbolic link, not a directory"):
        directories.make(ground / "a", mode=0o777, uid=0, gid=0)
    assert owned(ground / "real") == (0o700, 0, 0)


def test_make_needs_the_parent(ground: Path) -> None:
    with pytest.raises(Unavailable, match=rf"Making directory {ground}/no/a failed: {ground}/no is not there"):
        directories.make(ground / "no" / "a", mode=0o755, uid=0, gid=0)


def test_remove_takes_an_empty_one_and_leaves_a_full_one(ground: Path) -> None:
    path = ground / "a"
    path.mkdir()
    (path / "b").write_bytes(b"")
    (path / ".mesh-agent.left.tmp").write_bytes(b"half")
    assert not directories.remove(path)
    (path / "b").unlink()
    assert directories.remove(path)
    assert directories.remove(path)
    assert not path.exists()


def test_remove_refuses_what_is_no_directory(ground: Path) -> None:
    (ground / "a").write_bytes(b"")
    with pytest.raises(Refused, match="is a file, not a directory"):
        directories.remove(ground / "a")


def test_remove_tree_follows_no_link(ground: Path) -> None:
    kept = ground / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"")
    tree = ground / "tree"
    (tree / "deep" / "deeper").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(b"")
    (tree / "deep" / "to-directory").symlink_to(kept)
    (tree / "to-file").symlink_to(kept / "file")
    os.mkfifo(tree / "deep" / "deeper" / "pipe")
    directories.remove_tree(tree)
    directories.remove_tree(tree)
    assert names(ground) == {"kept"}
    assert names(kept) == {"file"}
    (ground / "link").symlink_to(kept)
    with pytest.raises(Refused, match="is a symbolic link"):
        directories.remove_tree(ground / "link")
    assert names(kept) == {"file"}
