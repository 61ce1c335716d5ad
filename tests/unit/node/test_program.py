from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from agent import __version__, bundle
from agent.bundle import Bundle
from agent.node import program
from agent.node.program import Program

ONE = Program("1.0", "0123456789abcdef", "aaaa", "native", "d" * 64)


def agent_file(path: Path, record: bytes = b'{"commit": "c", "id": "aaaa", "natives": [], "version": "1.0"}') -> Path:
    """A file with this record that carries a bundle of nothing."""
    with path.open("wb") as target:
        target.write(b"#!/bin/sh\n")
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("build.json", record)
    folder = path.with_suffix(".bundle")
    folder.mkdir()
    (folder / "bundle.toml").write_text('name = "tiny"')
    bundle.pack(path, folder, path)
    return path


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    file = agent_file(tmp_path / "agent")
    carried = bundle.open_bundle(file)
    assert program.of_file(file) == Program("1.0", "c", "aaaa", "tiny", carried.digest)


@pytest.mark.parametrize("content", [b"", b"PK", b"#!/bin/sh\n" + b"x" * 9000])
def test_what_is_no_whole_agent_file_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "agent").write_bytes(content)
    assert program.of_file(tmp_path / "agent") is None
    assert program.of_file(tmp_path / "none") is None
    assert program.of_file(tmp_path) is None
    whole = agent_file(tmp_path / "whole")
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:-30])
    assert program.of_file(tmp_path / "cut") is None


def test_a_source_tree_is_told_by_its_bundle() -> None:
    found = program.of_this_process(Bundle("b", "ab" * 32, {}, {}, Path("/nowhere")))
    assert found == Program(__version__, "", "", "b", "ab" * 32)


def test_its_text_reads_back_and_nothing_else_does() -> None:
    assert program.decode(ONE.encode().encode()) == ONE
    assert "\n" not in ONE.encode()
    newer = ONE.encode().replace("{", '{"later": [1], ', 1)
    assert program.decode(newer.encode()) == ONE
    for text in (b"", b"{}", b"[]", b"\xff", b'{"version": 1}'):
        assert program.decode(text) is None


def test_what_is_another_one_s_is_told() -> None:
    other = Program("1.1", "fedcba9876543210-dirty", "bbbb", "native", "e" * 64)
    assert program.changes(ONE, other) == (
        "version 1.0 → 1.1, commit 0123456789ab → fedcba987654-dirty, build aaaa → bbbb, "
        "bundle native dddddddddddd → native eeeeeeeeeeee"
    )
    assert program.changes(ONE, Program("1.0", "", "aaaa", "native", "d" * 64)) == "commit 0123456789ab → unknown"
    assert program.changes(ONE, ONE) == ""
    assert ONE.stamp != other.stamp
    assert ONE.stamp == Program("2", "other", "aaaa", "named otherwise", "d" * 64).stamp
