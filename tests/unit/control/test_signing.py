"""Signing keys are made once, kept as files, and never silently replaced."""

from __future__ import annotations

from contextlib import closing

import pytest

from agent.control.registry import Node
from agent.control.signing import Keyring, destroy_key, ensure_key, make_key, read_keyring
from agent.control.store import open_store
from agent.envelope import SigningKey
from agent.errors import Fatal, Refused
from agent.resources import Trust

NOW = 1_000_000.0


@pytest.fixture
def state(tmp_path):
    (tmp_path / "control").mkdir()
    return tmp_path


@pytest.fixture
def store(state):
    with closing(open_store(state, migrate=True)) as store:
        yield store


def random(count):
    return b"r" * count


def never(count):
    raise AssertionError("a second key was made")


def test_the_first_start_makes_a_key_and_later_ones_find_it(state, store):
    ensure_key(state, store, random, NOW)
    (key,) = read_keyring(state, store).keys
    file = state / "control" / "keys" / "1.seed"
    assert file.read_bytes() == key.seed == b"r" * 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    ensure_key(state, store, never, NOW)
    assert read_keyring(state, store).newest.public == key.public
    assert read_keyring(state, store).trust is None


def test_a_key_whose_making_was_cut_short_is_taken_up(state, store):
    (state / "control" / "keys").mkdir()
    (state / "control" / "keys" / "1.seed").write_bytes(b"s" * 32)
    ensure_key(state, store, never, NOW)
    assert read_keyring(state, store).newest.seed == b"s" * 32


@pytest.mark.parametrize("content", [None, b"", b"another key, also of 32 bytes ..."[:32]])
def test_a_lost_key_is_not_replaced(state, store, content):
    ensure_key(state, store, random, NOW)
    file = state / "control" / "keys" / "1.seed"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Fatal, match=r"1\.seed.*backup"):
        ensure_key(state, store, never, NOW)
    with pytest.raises(Refused, match=r"1\.seed.*backup"):
        read_keyring(state, store)


def test_before_the_first_start_there_is_no_key(state, store):
    with pytest.raises(Refused, match="no signing key yet"):
        read_keyring(state, store)


def test_a_node_is_signed_for_with_the_newest_key_that_it_confirmed():
    old, new = SigningKey(b"1" * 32), SigningKey(b"2" * 32)
    keys = Keyring((old, new), rotated=True)
    for confirmed, key in [(old.public, old), (new.public, new), (b"a retired one", new), (b"", new)]:
        assert keys.key_for(Node("a", b"k" * 32, enrolled=NOW, confirmed=confirmed)) is key


def test_nodes_are_told_only_what_their_tokens_did_not_say():
    key = SigningKey(b"1" * 32)
    assert Keyring((key,)).trust is None
    assert Keyring((key,), rotated=True).trust == Trust((key.public,), ())
    assert Keyring((key,), pins=("ab",)).trust == Trust((), ("ab",))


def test_a_retired_key_is_destroyed_and_its_number_not_used_again(state, store):
    ensure_key(state, store, random, NOW)
    assert make_key(state, store, lambda count: b"n" * count, NOW).number == 2
    store.signers.retire(1)
    destroy_key(state, 1)
    (key,) = read_keyring(state, store).keys
    assert key.seed == b"n" * 32
    assert make_key(state, store, lambda count: b"m" * count, NOW).number == 3
    assert [path.name for path in sorted((state / "control" / "keys").iterdir())] == ["2.seed", "3.seed"]


def test_what_is_left_of_a_retired_key_goes_at_the_next_start(state, store):
    ensure_key(state, store, random, NOW)
    make_key(state, store, lambda count: b"n" * count, NOW)
    store.signers.retire(1)  # and then it died, before the file was gone
    ensure_key(state, store, never, NOW)
    assert [path.name for path in (state / "control" / "keys").iterdir()] == ["2.seed"]
