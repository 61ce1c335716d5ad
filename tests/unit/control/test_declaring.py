"""From a list to a signed declaration in the store, and what a node's record says of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from agent.control.declaring import (
    LARGEST_DECLARATION,
    Applied,
    RefusedBy,
    StillWaiting,
    items_of,
    outcome,
    sign,
    sign_anew,
    tell,
    wait_for_report,
)
from agent.control.registry import Node, Refusal
from agent.control.signing import Keyring
from agent.control.store import open_store
from agent.envelope import SigningKey, verifies
from agent.errors import Refused
from agent.resources import open_declaration, read_declaration

NOW = 1_000_000.0
KEY = SigningKey(b"s" * 32)
KEYS = Keyring((KEY,))
FILE = {"kind": "file", "name": "/etc/web.conf", "content": "x"}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "control").mkdir()
    with closing(open_store(tmp_path, migrate=True)) as store:
        store.nodes.enrol("web-1", b"k" * 32, b"", {}, NOW)
        yield store


def put(store, *items):
    """Sign and store a list; its serial."""
    with store.transaction():
        ids = [f"{item['kind']}:{item['name']}" for item in items]
        return sign(store, KEYS, store.nodes.get("web-1"), items, ids, now=NOW)


def wanted(store):
    return read_declaration(open_declaration(store.declarations.wanted("web-1").data))


def test_what_no_broker_would_take_is_refused_and_not_stored(store):
    with pytest.raises(Refused, match="has 11 MiB, and a declaration carries at most 11: leave big files"):
        put(store, {**FILE, "content": "x" * LARGEST_DECLARATION})
    assert store.declarations.wanted("web-1") is None
    assert put(store, FILE) == 1


def test_what_is_declared_is_signed_stored_and_due(store):
    assert put(store, FILE) == 1
    (due,) = store.declarations.due()
    assert verifies(KEY.public, due.data, due.signature)
    declaration = wanted(store)
    assert (declaration.node, declaration.serial, declaration.items) == ("web-1", 1, (FILE,))
    assert declaration.issued_at.timestamp() == NOW
    assert not declaration.retire


def test_a_serial_follows_what_was_declared_and_what_was_reported(store):
    assert [put(store, FILE) for _ in range(3)] == [1, 2, 3]
    store.nodes.save(replace(store.nodes.get("web-1"), reported=2**40, last_seen=NOW))
    assert put(store, FILE) == 2**40 + 1


def test_an_empty_list_retires_and_no_other_does(store):
    put(store)
    assert wanted(store).retire
    put(store, FILE)
    assert not wanted(store).retire
    assert items_of(store.declarations.wanted("web-1")) == (FILE,)


def test_the_recovery_copy_goes_along(store):
    def recovery(*ids):
        put(store, *({**FILE, "name": f"/{id}"} for id in ids))
        return wanted(store).recovery

    assert recovery("a", "b") == ()
    # Nothing was heard yet: all that was declared may be there.
    assert recovery("b", "c") == ("file:/a", "file:/b")
    heard = replace(store.nodes.get("web-1"), reported=2, holdings=("file:/b", "file:/etc/passwd"), holdings_serial=2)
    store.nodes.save(heard)
    assert recovery("d") == ("file:/b",)
    assert recovery("e") == ("file:/b", "file:/d")


def test_the_same_content_is_signed_anew_above_what_was_reported(store):
    put(store, FILE)
    put(store)
    store.declarations.confirm("web-1", 2)
    node = replace(store.nodes.get("web-1"), reported=40)
    with store.transaction():
        sign_anew(store, KEYS, node, NOW + 9)
    declaration = wanted(store)
    assert (declaration.serial, declaration.items, declaration.retire) == (41, (), True)
    (due,) = store.declarations.due()
    assert verifies(KEY.public, due.data, due.signature)
    assert due.serial == 41


def test_what_tells_of_keys_alone_does_not_mean_to_remove_anything(store):
    with store.transaction():
        tell(store, KEYS, store.nodes.get("web-1"), NOW)
    assert (wanted(store).items, wanted(store).retire) == ((), False)
    # Whatever it is signed for again: by a rotation, or because the node has reported a higher serial.
    for say in (tell, sign_anew):
        with store.transaction():
            say(store, KEYS, store.nodes.get("web-1"), NOW)
        assert not wanted(store).retire
    put(store)
    with store.transaction():
        tell(store, KEYS, store.nodes.get("web-1"), NOW)
    assert (wanted(store).serial, wanted(store).retire) == (5, True)


def test_there_is_nothing_to_sign_anew_for_a_node_without_a_declaration(store):
    with store.transaction():
        sign_anew(store, KEYS, replace(store.nodes.get("web-1"), reported=40), NOW)
    assert store.declarations.due() == ()


NODE = Node("web-1", b"k" * 32, NOW, wanted=5, reported=4, failures={"file:/x": "no"})


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (NODE, None),
        (replace(NODE, reported=None), None),
        (replace(NODE, reported=5), Applied({"file:/x": "no"})),
        (replace(NODE, reported=6), Applied({"file:/x": "no"})),
        (replace(NODE, reported=6, floor=6), None),
        (replace(NODE, reported=6, floor=None), None),
        (replace(NODE, refusal=Refusal("no", 5, NOW)), RefusedBy("no")),
        (replace(NODE, refusal=Refusal("an earlier one", 4, NOW)), None),
        (replace(NODE, refusal=Refusal("not verified", None, NOW + 1)), RefusedBy("not verified")),
        (replace(NODE, refusal=Refusal("not verified, long ago", None, NOW - 1)), None),
    ],
)
def test_what_a_node_has_said_of_a_declaration(node, said):
    assert outcome(node, 5, NOW) == said


def test_waiting_ends_with_the_report(store):
    serial = put(store, FILE)
    heard = replace(store.nodes.get("web-1"), reported=1, failures={"file:/etc/web.conf": "no"})
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            with closing(open_store(store._database.path.parent.parent)) as other:
                other.nodes.save(heard)

    said = wait_for_report(store, "web-1", serial, 60, monotonic=lambda: sum(pauses), pause=pause)
    assert said == Applied({"file:/etc/web.conf": "no"})
    assert len(pauses) == 3


def test_waiting_ends_in_time(store):
    serial = put(store, FILE)
    pauses = []
    said = wait_for_report(store, "web-1", serial, 30, monotonic=lambda: sum(pauses), pause=pauses.append)
    assert said == StillWaiting()
    assert 30 <= sum(pauses) < 31
