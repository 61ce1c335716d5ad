from __future__ import annotations

import os
import stat
from pathlib import Path

from agent.kinds.service import logs
from agent.kinds.service.last_words import last_of
from tests.unit.kinds.service.workshop import Workshop, until


def last_line(log: Path, begin: int) -> str:
    return last_of(logs.tail(log, begin))


def test_a_log_is_read_only_from_where_it_began(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log, 0) == ""
    log.write_bytes(b"first\nsecond\n\n  \n")
    assert last_line(log, 0) == "second"
    assert last_line(log, len(b"first\nsecond\n")) == ""
    log.write_bytes(b"cut short since")
    assert last_line(log, 1000) == "cut short since"
    log.write_bytes(b"x" * 100_000 + b"\nlast \xff")
    assert last_line(log, 3) == "last �"
    log.write_bytes(b"y" * 10_000)
    assert last_line(log, 0) == "y" * 300


def test_a_log_within_its_bound_is_left(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert not logs.rotate(log, 3)
    log.write_bytes(b"abc")
    assert not logs.rotate(log, 3)
    assert log.read_bytes() == b"abc"
    assert logs.files_of(log) == (log, tmp_path / "log.1")
    assert not logs.files_of(log)[1].exists()


def test_a_log_beyond_its_bound_begins_anew_and_its_end_is_kept(ground: Path) -> None:
    log, older = logs.files_of(ground / "log")
    older.write_bytes(b"older still")
    log.write_bytes(b"0123456789")
    assert logs.rotate(log, 4)
    assert log.read_bytes() == b""
    assert older.read_bytes() == b"6789"
    assert stat.S_IMODE(older.stat().st_mode) == 0o600


def test_all_logs_of_a_state_folder_are_looked_after(ground: Path) -> None:
    logs.rotate_all(ground, 4)
    (ground / "log").mkdir()
    for name, content in (("a.log", b"01234"), ("b.log", b"0"), ("c.log.1", b"01234")):
        (ground / "log" / name).write_bytes(content)
    logs.rotate_all(ground, 4)
    found = {path.name: path.read_bytes() for path in (ground / "log").iterdir()}
    assert found == {"a.log": b"", "a.log.1": b"1234", "b.log": b"0", "c.log.1": b"01234"}


def test_a_running_service_goes_on_writing_to_its_rotated_log(workshop: Workshop) -> None:
    go = workshop.ground / "go"
    os.mkfifo(go)
    resource = workshop.declare(f"echo before; read x <'{go}'; echo after; exec sleep 1000")
    workshop.up(resource)
    log, older = logs.files_of(workshop.identity.log)
    until(lambda: log.read_text() == "before\n")
    assert logs.rotate(log, 1)
    go.write_text("\n")
    until(lambda: log.read_text() == "after\n")
    workshop.down(resource)
    assert not log.exists()
    assert not older.exists()
