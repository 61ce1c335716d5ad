"""A poke is heard at once, lost without harm, and listened for at any depth of folders."""

from __future__ import annotations

import threading

from agent.control.poke import listen, poke


def test_a_poke_is_heard_however_long_the_path_is(tmp_path):
    state = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 8)
    (state / "control").mkdir(parents=True)
    heard = threading.Semaphore(0)
    with listen(state, heard.release):
        assert (state / "control" / "poke").stat().st_mode & 0o777 == 0o600
        for _ in range(3):
            poke(state)
            assert heard.acquire(timeout=10)


def test_a_poke_that_finds_nobody_is_lost(tmp_path):
    poke(tmp_path)
    (tmp_path / "control").mkdir()
    poke(tmp_path)
    with listen(tmp_path, lambda: None):
        pass
    poke(tmp_path)


def test_what_a_killed_listener_left_is_taken_over(tmp_path):
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "poke").touch()
    heard = threading.Event()
    with listen(tmp_path, heard.set):
        poke(tmp_path)
        assert heard.wait(10)


def test_more_pokes_than_anybody_hears_do_not_block(tmp_path):
    (tmp_path / "control").mkdir()
    hold = threading.Event()
    with listen(tmp_path, lambda: hold.wait(10)):
        for _ in range(5000):
            poke(tmp_path)
        hold.set()
