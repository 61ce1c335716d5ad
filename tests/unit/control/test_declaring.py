"""From a list to a signed declaration in the store, and what a node's record says of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from agent.control.declaring import (
    Applied,
    RefusedBy,
    StillWaiting,
    check_document,
    declare,
    outcome,
    sign_anew,
    wait_for_report,
)
from agent.control.registry import Node, Refusal
from agent.control.store import open_store
from agent.envelope import SigningKey, verifies
from agent.errors import Refused
from agent.resources import Document, open_declaration, read_declaration

NOW = 1_000_000.0
KEY = SigningKey(b"s" * 32)
FILE = {"kind": "file", "name": "/etc/web.conf", "content": "x"}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "control").mkdir()
    with closing(open_store(tmp_path, migrate=True)) as store:
        store.nodes.enrol("web-1", b"k" * 32, b"", {}, NOW)
        yield store


def document(*items, **params):
    return Document(params, items)


def put(store, *items, retire=False, now=NOW):
    checked = check_document(document(*items), {}, "web-1")
    return declare(store, KEY, "web-1", checked, retire=retire, now=now)


def wanted(store):
    return read_declaration(open_declaration(store.declarations.wanted("web-1").data))


def test_a_list_is_filled_with_parameters_and_the_nodes_name():
    item = {"kind": "file", "name": "/etc/${param.app}/${node.name}", "content": "${param.app}"}
    checked = check_document(document(item, app="web", port="80"), {"app": "db"}, "web-1")
    assert checked.ids == ("file:/etc/db/web-1",)
    assert checked.items[0]["content"] == "${param.app}"  # a file's content takes part only if it says so


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([{"kind": "fil", "name": "/x"}], r'resource\[0\]\.kind.*did you mean "file"'),
        ([FILE, {**FILE, "name": "etc"}], r"resource\[1\]\.name"),
        ([{**FILE, "contnt": "x"}], r'resource\[0\]\.contnt.*did you mean "content"'),
        ([{**FILE, "role": "founder"}], r"resource\[0\]\.role"),
        ([{"kind": "file", "name": "/x", "blob": "b"}], r"resource\[0\]\.blob"),
        ([FILE, FILE], "twice"),
        ([{"kind": "reserved", "name": "x", "ports": ["80", "0.0.0.0:80"]}], r"resource\[0\]\.ports"),
        ([{"kind": "reserved", "name": x, "ports": ["80"]} for x in "ab"], "reserved:b wants port"),
        ([{**FILE, "name": "${state}/ledger.db"}], "the agent's own folder"),
        ([{**FILE, "name": "${param.nowhere}"}], "param.nowhere"),
        (["file"], r"resource\[0\] is a string"),
    ],
)
def test_a_list_that_does_not_validate_is_refused_with_the_place(items, why):
    with pytest.raises(Refused, match=why):
        check_document(document(*items), {}, "web-1")


def test_a_setting_that_is_no_parameter_is_refused():
    with pytest.raises(Refused, match=r'"prot".*did you mean "port"'):
        check_document(document(FILE, port="80"), {"prot": "81"}, "web-1")


def test_a_need_may_be_something_that_the_node_carries():
    check_document(document({**FILE, "needs": ["package:openssl"]}), {}, "web-1")


def test_a_secret_must_be_declared_beside_what_uses_it():
    with pytest.raises(Refused, match=r"secret\.db"):
        check_document(document({**FILE, "content": "${secret.db}", "template": True}), {}, "web-1")


def test_what_is_declared_is_signed_stored_and_due(store):
    declared = put(store, FILE)
    assert (declared.node, declared.serial, declared.has_spoken) == ("web-1", 1, False)
    (due,) = store.declarations.due()
    assert verifies(KEY.public, due.data, due.signature)
    declaration = wanted(store)
    assert (declaration.node, declaration.serial, declaration.items) == ("web-1", 1, (FILE,))
    assert declaration.issued_at.timestamp() == NOW
    assert not declaration.retire


def test_a_serial_follows_what_was_declared_and_what_was_reported(store):
    assert [put(store, FILE).serial for _ in range(3)] == [1, 2, 3]
    store.nodes.save(replace(store.nodes.get("web-1"), reported=2**40, last_seen=NOW))
    declared = put(store, FILE)
    assert (declared.serial, declared.has_spoken) == (2**40 + 1, True)


def test_an_unknown_node_is_refused_with_the_nearest_name(store):
    checked = check_document(document(FILE), {}, "web1")
    with pytest.raises(Refused, match=r'no node "web1"; did you mean "web-1"'):
        declare(store, KEY, "web1", checked, retire=False, now=NOW)


def test_an_empty_list_has_to_say_that_it_is_meant(store):
    with pytest.raises(Refused, match="--retire"):
        put(store)
    assert store.declarations.wanted("web-1") is None
    put(store, retire=True)
    assert wanted(store).retire


def test_retire_is_said_of_empty_lists_only(store):
    put(store, FILE, retire=True)
    assert not wanted(store).retire


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
    put(store, retire=True)
    store.declarations.confirm("web-1", 2)
    node = replace(store.nodes.get("web-1"), reported=40)
    with store.transaction():
        sign_anew(store, KEY, node, NOW + 9)
    declaration = wanted(store)
    assert (declaration.serial, declaration.items, declaration.retire) == (41, (), True)
    (due,) = store.declarations.due()
    assert verifies(KEY.public, due.data, due.signature)
    assert due.serial == 41


def test_there_is_nothing_to_sign_anew_for_a_node_without_a_declaration(store):
    with store.transaction():
        sign_anew(store, KEY, replace(store.nodes.get("web-1"), reported=40), NOW)
    assert store.declarations.due() == ()


NODE = Node("web-1", b"k" * 32, NOW, wanted=5, reported=4, failures={"file:/x": "no"})


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (NODE, None),
        (replace(NODE, reported=None), None),
        (replace(NODE, reported=5), Applied({"file:/x": "no"})),
        (replace(NODE, reported=6), Applied({"file:/x": "no"})),
        (replace(NODE, refusal=Refusal("no", 5, NOW)), RefusedBy("no")),
        (replace(NODE, refusal=Refusal("an earlier one", 4, NOW)), None),
        (replace(NODE, refusal=Refusal("not verified", None, NOW + 1)), RefusedBy("not verified")),
        (replace(NODE, refusal=Refusal("not verified, long ago", None, NOW - 1)), None),
    ],
)
def test_what_a_node_has_said_of_a_declaration(node, said):
    assert outcome(node, 5, NOW) == said


def test_waiting_ends_with_the_report(store):
    declared = put(store, FILE)
    heard = replace(store.nodes.get("web-1"), reported=1, failures={"file:/etc/web.conf": "no"})
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            with closing(open_store(store._database.path.parent.parent)) as other:
                other.nodes.save(heard)

    said = wait_for_report(store, "web-1", declared.serial, 60, monotonic=lambda: sum(pauses), pause=pause)
    assert said == Applied({"file:/etc/web.conf": "no"})
    assert len(pauses) == 3


def test_waiting_ends_in_time(store):
    declared = put(store, FILE)
    pauses = []
    said = wait_for_report(store, "web-1", declared.serial, 30, monotonic=lambda: sum(pauses), pause=pauses.append)
    assert said == StillWaiting()
    assert 30 <= sum(pauses) < 31
