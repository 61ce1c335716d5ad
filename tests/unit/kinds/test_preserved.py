from __future__ import annotations

import hashlib
import stat

import pytest

from agent.errors import Unavailable
from agent.kinds import preserved
from agent.kinds.preserved import Previous


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb\n", bytes(range(256)) * 20_000])
def test_what_was_kept_comes_back(bench, content: bytes) -> None:
    previous = Previous(0o4751, 12, 34, b"\x00other")
    pieces = [content[at : at + 700_000] for at in range(0, len(content), 700_000)]
    preserved.keep(bench.machine, "file:/a", previous, pieces)
    assert preserved.recall(bench.machine, "file:/a") == previous
    assert b"".join(preserved.content(bench.machine, "file:/a")) == content


def test_it_lies_in_the_state_folder_and_nobody_else_can_read_it(bench) -> None:
    preserved.keep(bench.machine, "file:/a", Previous(0o644, 0, 0, None), [b"x"])
    place = bench.machine.state / "blobs" / hashlib.sha256(b"file:/a").hexdigest()
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


def test_each_id_has_its_own(bench) -> None:
    preserved.keep(bench.machine, "file:/a", Previous(0o600, 0, 0, None), [b"a"])
    assert preserved.recall(bench.machine, "file:/b") is None
    with pytest.raises(Unavailable):
        list(preserved.content(bench.machine, "file:/b"))


def test_a_failed_write_leaves_what_was_kept(bench) -> None:
    def broken():
        yield b"half"
        raise Unavailable("The disk is gone.")

    preserved.keep(bench.machine, "file:/a", Previous(0o600, 0, 0, None), [b"whole"])
    with pytest.raises(Unavailable):
        preserved.keep(bench.machine, "file:/a", Previous(0o644, 1, 1, None), broken())
    assert preserved.recall(bench.machine, "file:/a") == Previous(0o600, 0, 0, None)
    assert b"".join(preserved.content(bench.machine, "file:/a")) == b"whole"


def test_forgetting_is_for_good_and_can_be_repeated(bench) -> None:
    preserved.keep(bench.machine, "file:/a", Previous(0o600, 0, 0, None))
    preserved.discard(bench.machine, "file:/a")
    preserved.discard(bench.machine, "file:/a")
    assert preserved.recall(bench.machine, "file:/a") is None


@pytest.mark.parametrize("damaged", [b"", b"{}\n", b"nonsense", b'{"mode":"9","uid":0,"gid":0}\n'])
def test_a_damaged_memory_is_none(bench, damaged: bytes) -> None:
    preserved.keep(bench.machine, "file:/a", Previous(0o600, 0, 0, None))
    (bench.machine.state / "blobs" / hashlib.sha256(b"file:/a").hexdigest()).write_bytes(damaged)
    assert preserved.recall(bench.machine, "file:/a") is None
