from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agent import bundle
from agent.errors import Fatal, Refused
from agent.host import locks
from agent.node import folder, own_copy, program
from agent.node.program import Program
from tests.unit.node.test_program import agent_file

RECORD = b'{"commit": "c", "id": "aaaa", "natives": [], "version": "1.0"}'


@pytest.fixture
def state(ground: Path) -> Path:
    made = ground / "a state"
    folder.prepare(made)
    (made / "runtime").mkdir(0o700)
    return made


def settle(running: Path, state: Path, carrying: Path | None = None) -> Path:
    """The copy of the running file, which carries its own bundle or the one in this folder."""
    opened = bundle.open_bundle(carrying or running)
    known = program.of_file(running)
    assert known
    wanted = Program(known.version, known.commit, known.build, opened.name, opened.digest)
    needed = own_copy.settled(state) != wanted
    with own_copy.staged(running, state, opened, needed=needed) as put:
        put()
    assert own_copy.settled(state) == wanted
    assert sorted(path.name for path in (state / "run").iterdir() if path.suffix != ".lock") == []
    return own_copy.place(state)


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_the_running_file_is_copied_once(state: Path, ground: Path) -> None:
    running = agent_file(ground / "an agent")
    place = settle(running, state)
    assert place.read_bytes() == running.read_bytes()
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    before = inode(place)
    assert before != inode(running)
    os.utime(running, (1, 1))
    assert inode(settle(running, state)) == before
    assert own_copy.is_it(place, state)
    assert not own_copy.is_it(running, state)
    # The copy runs itself; so does a link to it.
    assert inode(settle(place, state)) == before
    (ground / "link").hardlink_to(place)
    assert own_copy.is_it(ground / "link", state)
    assert inode(settle(ground / "link", state)) == before


@pytest.mark.parametrize("other", [b'"id": "bbbb"', b'"id": "aaab"'])
def test_another_file_replaces_the_copy_when_it_is_told_to(state: Path, ground: Path, other: bytes) -> None:
    first, second = agent_file(ground / "first"), agent_file(ground / "second", RECORD.replace(b'"id": "aaaa"', other))
    place = settle(first, state)
    with own_copy.staged(second, state, bundle.open_bundle(second), needed=True):
        assert place.read_bytes() == first.read_bytes()
        assert (state / "run" / "agent.new").read_bytes() == second.read_bytes()
    assert own_copy.settled(state) == program.of_file(first)
    assert settle(second, state).read_bytes() == second.read_bytes()


def test_a_damaged_copy_is_replaced(state: Path, ground: Path) -> None:
    running = agent_file(ground / "agent")
    place = settle(running, state)
    place.write_bytes(running.read_bytes()[:-1])
    assert own_copy.settled(state) is None
    assert settle(running, state).read_bytes() == running.read_bytes()


def test_a_folder_s_bundle_is_packed_into_the_copy_once(state: Path, ground: Path) -> None:
    running, folder_ = agent_file(ground / "agent"), ground / "mine"
    (folder_ / "blobs").mkdir(parents=True)
    (folder_ / "bundle.toml").write_text('name = "mine"')
    place = settle(running, state, folder_)
    assert bundle.open_bundle(place).name == "mine"
    before = inode(place)
    assert inode(settle(running, state, folder_)) == inode(settle(place, state, folder_)) == before
    (folder_ / "blobs" / "more").write_bytes(b"more")
    assert inode(settle(place, state, folder_)) != before
    assert bundle.open_bundle(settle(running, state)).name == "tiny"


def test_one_process_at_a_time_and_what_was_cut_short_goes(state: Path, ground: Path) -> None:
    running = agent_file(ground / "agent")
    with (
        locks.hold(state / "run" / "agent.new.lock"),
        pytest.raises(Fatal, match=rf"already running on .* \(process {os.getpid()}\)"),
    ):
        settle(running, state)
    for _ in range(2):  # when it is copied, and when that isn't needed
        (state / "run" / "agent.new").write_bytes(b"half of it")
        settle(running, state)


def test_a_source_tree_cannot_settle(state: Path, ground: Path) -> None:
    opened = bundle.open_bundle(agent_file(ground / "agent"))
    with (
        pytest.raises(Refused, match=r"source tree; build the one file with ./build.sh"),
        own_copy.staged(None, state, opened, needed=True),
    ):
        pass


def carrying(ground: Path, blob: bytes) -> Path:
    """A file whose bundle holds a blob."""
    file, folder_ = agent_file(ground / "agent"), ground / "mine"
    (folder_ / "blobs").mkdir(parents=True)
    (folder_ / "bundle.toml").write_text('name = "mine"')
    (folder_ / "blobs" / "blob").write_bytes(blob)
    bundle.pack(file, folder_, file)
    return file


def test_a_blob_is_digested_once(state: Path, ground: Path) -> None:
    blob = b"blob" * 100_000
    file = carrying(ground, blob)
    opened = bundle.open_bundle(file)
    own_copy.verify_once(opened, state)
    content = file.read_bytes()
    written = file.stat().st_mtime_ns
    damaged = content.replace(blob, b"B" + blob[1:])
    assert len(damaged) == len(content) != 0
    assert damaged != content
    # It is told by device, inode, size and time: this one passes for the one that was read.
    with file.open("r+b") as stream:
        stream.write(damaged)
    os.utime(file, ns=(1, written))
    own_copy.verify_once(opened, state)
    with pytest.raises(Refused, match="is not what was packed"):
        bundle.verify(opened)
    for change in (lambda: os.utime(file, ns=(1, written + 1)), lambda: _replace(file, damaged, written)):
        change()
        with pytest.raises(Refused, match="is not what was packed"):
            own_copy.verify_once(opened, state)
    _replace(file, content, written)
    own_copy.verify_once(opened, state)


def test_a_copy_of_what_was_digested_counts_as_digested(state: Path, ground: Path) -> None:
    blob = b"blob" * 100_000
    file = carrying(ground, blob)
    own_copy.verify_once(bundle.open_bundle(file), state)
    place = settle(file, state)
    copy = bundle.open_bundle(place)
    written = place.stat().st_mtime_ns
    with place.open("r+b") as stream:
        stream.write(place.read_bytes().replace(blob, b"B" + blob[1:]))
    os.utime(place, ns=(1, written))
    own_copy.verify_once(copy, state)


def test_what_it_carries_is_read_from_the_copy(state: Path, ground: Path) -> None:
    file = carrying(ground, b"blob")
    for came_from in (file, ground / "mine"):
        opened = bundle.open_bundle(came_from)
        settle(file, state, came_from)
        carried = own_copy.carried(state, opened)
        assert (carried.digest, carried.place) == (opened.digest, own_copy.place(state))
        assert b"".join(carried.read_blob("blob")) == b"blob"


def test_without_a_place_to_remember_it_is_digested_again(ground: Path) -> None:
    file = carrying(ground, b"blob" * 1000)
    own_copy.verify_once(bundle.open_bundle(file), ground / "none")
    assert not (ground / "none").exists()


def _replace(file: Path, content: bytes, written: int) -> None:
    """Another inode of the same size and time."""
    other = file.with_name("other")
    other.write_bytes(content)
    os.utime(other, ns=(1, written))
    other.replace(file)
