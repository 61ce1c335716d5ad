from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.kinds import places
from agent.kinds.places import Form, Other, Thing
from tests.marked import mark_of, put_mark

NOBODY = pwd.getpwnam("nobody")


def test_one_look_says_everything(ground: Path) -> None:
    (ground / "a").write_bytes(b"abc")
    (ground / "a").chmod(0o640)
    put_mark(ground / "a", b"mark")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert places.look(ground / "a", Form.FILE, uid=0, digest=True) == Thing(0o640, 0, 0, b"mark", digest)
    assert places.look(ground / "a", Form.FILE, uid=0) == Thing(0o640, 0, 0, b"mark", "")
    assert places.look(ground, Form.DIRECTORY, uid=0) == Thing(0o755, 0, 0, None)


def test_nothing_there_and_nothing_on_the_way_are_the_same(ground: Path) -> None:
    assert places.look(ground / "a", Form.FILE, uid=0) is None
    assert places.look(ground / "a" / "b", Form.FILE, uid=0) is None


def test_something_else_is_named_and_not_opened(ground: Path) -> None:
    (ground / "link").symlink_to("/etc/passwd")
    os.mkfifo(ground / "pipe")
    (ground / "folder").mkdir()
    assert places.look(ground / "link", Form.FILE, uid=0) == Other("a symbolic link")
    assert places.look(ground / "pipe", Form.FILE, uid=0) == Other("a named pipe")
    assert places.look(ground / "folder", Form.FILE, uid=0) == Other("a directory")
    assert places.look(Path("/dev/null"), Form.FILE, uid=0) == Other("a device")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(ground / "socket"))
        assert places.look(ground / "socket", Form.FILE, uid=0) == Other("a socket")
    with pytest.raises(Refused, match="is a symbolic link, not a directory; move it away"):
        places.require(ground / "link", Form.DIRECTORY, uid=0)


def test_a_place_needs_a_directory_that_is_there_or_declared(bench, ground: Path) -> None:
    folder = bench.resource("directory", ground / "a")
    with pytest.raises(Unavailable, match=f"declare directory:{ground}/a before it"):
        places.check(ground / "a" / "b", Form.FILE, "root", [])
    places.check(ground / "a" / "b", Form.FILE, "root", [folder])
    places.check(ground / "a" / "b", Form.FILE, "root", [bench.resource("package", "brings-it")])
    places.check(ground / "b", Form.FILE, "root", [])
    places.check(Path("/b-at-the-top"), Form.FILE, "root", [])


def test_an_owner_must_exist_unless_a_package_may_bring_it(bench, ground: Path) -> None:
    with pytest.raises(Refused, match="no user 'nobody-knows'"):
        places.check(ground / "b", Form.FILE, "nobody-knows", [])
    places.check(ground / "b", Form.FILE, "nobody-knows", [bench.resource("package", "brings-it")])


def test_what_is_in_the_way_is_said_before_anything_is_touched(ground: Path) -> None:
    (ground / "a").mkdir()
    with pytest.raises(Refused, match="is a directory, not a file"):
        places.check(ground / "a", Form.FILE, "root", [])


def test_dressing_leaves_the_content_and_the_file(ground: Path) -> None:
    path = ground / "a"
    path.write_bytes(b"abc")
    inode = path.stat().st_ino
    places.dress(path, mode=0o600, uid=0, gid=NOBODY.pw_gid, mark=b"m")
    assert places.look(path, Form.FILE, uid=0) == Thing(0o600, 0, NOBODY.pw_gid, b"m")
    assert (path.stat().st_ino, path.read_bytes()) == (inode, b"abc")


def test_dressing_leaves_a_files_other_names_alone(ground: Path) -> None:
    other, path = ground / "other", ground / "a"
    other.write_bytes(b"abc")
    other.chmod(0o640)
    path.hardlink_to(other)
    places.dress(path, mode=0o604, uid=NOBODY.pw_uid, gid=0, mark=b"m")
    assert places.look(other, Form.FILE, uid=0) == Thing(0o640, 0, 0, None)
    assert places.look(path, Form.FILE, uid=0) == Thing(0o604, NOBODY.pw_uid, 0, b"m")
    assert path.read_bytes() == b"abc"


def test_unmarking_can_be_repeated(ground: Path) -> None:
    put_mark(ground, b"m")
    places.unmark(ground, uid=0)
    places.unmark(ground, uid=0)
    assert mark_of(ground) is None


def test_drift_is_said_in_words() -> None:
    thing = Thing(0o600, 0, 5, None)
    assert thing.drift(0o600, (0, 5)) == ""
    assert thing.drift(0o644, (0, 5)) == "mode 0600, not 0644"
    assert thing.drift(0o644, (1, 5)) == "mode 0600, not 0644 and owner 0:5, not 1:5"
