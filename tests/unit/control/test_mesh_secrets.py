"""The mesh's secrets: who uses one is declared again when its value changes, and only then; nothing else moves."""

from __future__ import annotations

import base64
from contextlib import closing
from dataclasses import replace

import pytest

from agent.control.arranging import Arranging
from agent.control.changing import settle
from agent.control.declaring import Declared, items_of, sign_anew
from agent.control.mesh_secrets import Kept, MeshSecrets, SecretRow
from agent.control.modules import read_module
from agent.control.signing import Keyring
from agent.control.store import open_store
from agent.envelope import SigningKey
from agent.errors import Refused
from agent.fields import Fields
from agent.reconcile.change import Change
from agent.resources import LARGEST_SECRET, Document

NOW = 1_000_000.0
KEYS = Keyring((SigningKey(b"s" * 32),))
NODES = {name: SigningKey(name.encode() * 32) for name in "abc"}
READS = {"kind": "file", "name": "/etc/${assignment.name}", "template": True, "content": "${secret.db}"}
WEB = {"name": "web", "resource": [READS]}
FILE = {"kind": "file", "name": "/etc/a", "content": "x"}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "control").mkdir()
    with closing(open_store(tmp_path, migrate=True)) as store:
        for name, key in NODES.items():
            enrol(store, name, key)
        yield store


@pytest.fixture
def arranging(store, tmp_path):
    arranging = Arranging(tmp_path, store, lambda: KEYS, lambda: NOW)
    arranging.add_module(read_module(Fields(WEB)))
    return arranging


@pytest.fixture
def secrets(store, tmp_path):
    return MeshSecrets(tmp_path, store, lambda: KEYS, lambda: NOW, lambda size: b"\xab" * size)


def enrol(store, name, key):
    store.nodes.enrol(name, key.public, b"", {}, NOW)
    store.nodes.save(replace(store.nodes.get(name), last_seen=NOW, reported=0, reported_at=NOW))


def document(*items):
    return Document({}, items)


def items(store, node):
    wanted = store.declarations.wanted(node)
    return items_of(wanted) if wanted else ()


def values(store, node, key=None):
    """What a node that has this key reads of the mesh's secrets."""
    sealed = {item["name"]: base64.b64decode(item["sealed"]) for item in items(store, node) if "sealed" in item}
    return {name: (key or NODES[node]).unseal(box) for name, box in sealed.items()}


def serials(store):
    return {name: store.nodes.get(name).wanted for name in store.nodes.names()}


def test_a_secret_is_sealed_for_each_node_that_uses_it(store, arranging, secrets):
    assert secrets.set("db", b"one") == Kept(1, is_new=True)
    for node in "ab":
        arranging.assign("web", node)
    assert (values(store, "a"), values(store, "b")) == ({"db": b"one"}, {"db": b"one"})
    assert items(store, "a")[0] != items(store, "b")[0]
    assert secrets.rows() == (SecretRow("db", 1, NOW, {"a": ("web",), "b": ("web",)}),)


def test_another_value_is_declared_to_exactly_those_who_use_it(store, arranging, secrets):
    secrets.set("db", b"one")
    for node in "ab":
        arranging.assign("web", node)
    arranging.declare("c", document(FILE), {})
    kept = secrets.set("db", b"two")
    assert kept.declared == (Declared("a", 2, has_spoken=True), Declared("b", 2, has_spoken=True))
    assert (values(store, "a"), values(store, "b")) == ({"db": b"two"}, {"db": b"two"})
    assert serials(store) == {"a": 2, "b": 2, "c": 1}
    assert secrets.set("db", b"two") == Kept(2, is_new=False)
    assert serials(store) == {"a": 2, "b": 2, "c": 1}


def test_where_nothing_changes_nothing_is_declared_or_planned(store, arranging, secrets):
    secrets.set("db", b"one")
    arranging.assign("web", "a")
    before = items(store, "a")
    assert not arranging.plan("a", None, {}).changes
    with store.transaction():
        settle(store, KEYS, "a", NOW)
        sign_anew(store, KEYS, store.nodes.get("a"), NOW)
    assert (items(store, "a"), serials(store)["a"]) == (before, 2)
    arranging.declare("a", document(FILE), {})
    assert items(store, "a")[0] == before[0]


def test_a_plan_says_that_it_changed_and_shows_nothing(store, arranging, secrets):
    listed = document({**FILE, "template": True, "content": "${secret.db}"})
    with pytest.raises(Refused, match=r'secret "db"; `agent control secret set db` gives'):
        arranging.plan("a", listed, {})
    secrets.set("db", b"one-value")
    planned = arranging.plan("a", listed, {})
    assert [(line.id, line.change) for line in planned.lines] == [
        ("secret:db", Change.CREATE),
        ("file:/etc/a", Change.CREATE),
    ]
    # A plan keeps nothing of what it had to seal.
    assert store._database.rows("SELECT * FROM sealed") == []
    arranging.declare("a", listed, {})
    with store.transaction():
        enrol(store, "a", SigningKey(b"n" * 32))
    changed = arranging.plan("a", None, {})
    assert [(line.id, line.change, line.reason) for line in changed.lines] == [
        ("secret:db", Change.CHANGE, "the mesh has changed it"),
        ("file:/etc/a", Change.KEEP, ""),
    ]
    assert "one-value" not in repr(planned) + repr(changed)
    assert str(items(store, "a")[0]["sealed"]) not in repr(changed)


def test_another_machine_in_a_nodes_place_can_read_it(store, arranging, secrets):
    secrets.set("db", b"one")
    arranging.assign("web", "a")
    other = SigningKey(b"n" * 32)
    with store.transaction():
        enrol(store, "a", other)
        settle(store, KEYS, "a", NOW)
    assert values(store, "a", other) == {"db": b"one"}
    assert values(store, "a") == {"db": None}


def test_so_it_can_when_what_is_arranged_can_not_be_declared_any_more(store, arranging, secrets, caplog):
    secrets.set("db", b"one")
    arranging.assign("web", "a")
    other = SigningKey(b"n" * 32)
    with store.transaction():
        store.modules.remove("web")  # as nothing does by itself
        enrol(store, "a", other)
        settle(store, KEYS, "a", NOW)
    assert "which has been removed" in caplog.text
    assert values(store, "a", other) == {"db": b"one"}
    with store.transaction():
        settle(store, KEYS, "a", NOW)
    assert serials(store)["a"] == 2


def test_signing_anew_seals_for_the_present_key(store, arranging, secrets):
    secrets.set("db", b"one")
    arranging.assign("web", "a")
    other = SigningKey(b"n" * 32)
    with store.transaction():
        enrol(store, "a", other)
        sign_anew(store, KEYS, store.nodes.get("a"), NOW)
    assert values(store, "a", other) == {"db": b"one"}


def test_going_back_keeps_the_present_value(store, arranging, secrets):
    secrets.set("db", b"one")
    arranging.assign("web", "a")
    arranging.assign("web", "a", "more")
    secrets.set("db", b"two")
    arranging.rollback("a")
    assert [item["name"] for item in items(store, "a")] == ["db", "/etc/web"]
    assert values(store, "a") == {"db": b"two"}


def test_another_value_alone_is_nothing_to_go_back_from(store, arranging, secrets):
    secrets.set("db", b"one")
    arranging.assign("web", "a")
    secrets.set("db", b"two")
    with pytest.raises(Refused, match="never declared anything else"):
        arranging.rollback("a")


def test_one_that_is_used_is_not_removed(store, arranging, secrets):
    secrets.set("db", b"one")
    arranging.assign("web", "a", "shop")
    arranging.declare("b", document({**FILE, "template": True, "content": "${secret.db}"}), {})
    with pytest.raises(Refused, match="The secret db is used by shop on a, the own list of b; change that first"):
        secrets.remove("db")
    arranging.unassign("shop", "a")
    assert items(store, "a") == ()
    arranging.declare("b", document(), {}, retire=True)
    secrets.remove("db")
    assert secrets.rows() == ()
    with pytest.raises(Refused, match='The mesh has no secret "db"'):
        secrets.remove("db")
    with pytest.raises(Refused, match="nor the mesh have a secret"):
        arranging.rollback("b")


def test_one_that_only_waits_to_be_used_is_not_removed_either(store, arranging, secrets):
    secrets.set("db", b"one")
    store.nodes.enrol("new", SigningKey(b"w" * 32).public, b"", {}, NOW)
    arranging.assign("web", "new")
    with pytest.raises(Refused, match="web on new"):
        secrets.remove("db")
    assert secrets.set("db", b"two").declared == ()
    enrol(store, "new", SigningKey(b"w" * 32))
    with store.transaction():
        settle(store, KEYS, "new", NOW)
    assert values(store, "new", SigningKey(b"w" * 32)) == {"db": b"two"}


def test_a_value_that_cannot_reach_all_who_use_it_is_not_kept(store, arranging, secrets):
    secrets.set("db", b"one")
    arranging.assign("web", "a")
    with store.transaction():
        store.nodes.enrol("a", bytes(32), b"", {}, NOW)  # no key
    with pytest.raises(Refused, match=r"a uses the mesh's secret db, and could not be declared any more: .*join again"):
        secrets.set("db", b"two")
    assert store.secrets.get("db").value == "one"
    assert serials(store)["a"] == 1


def test_one_that_the_mesh_makes_is_made_once_unless_it_is_asked_for_anew(store, arranging, secrets):
    assert secrets.make("db") == Kept(1, is_new=True)
    assert store.secrets.get("db").value == "ab" * 32
    with pytest.raises(Refused, match="has a secret db already; say --anew"):
        secrets.make("db")
    arranging.assign("web", "a")
    kept = secrets.make("db", 16, anew=True)
    assert (kept.version, [one.node for one in kept.declared]) == (2, ["a"])
    assert values(store, "a") == {"db": b"ab" * 16}


@pytest.mark.parametrize("value", [b"x", "pä\n\n".encode(), b" ", b"x" * LARGEST_SECRET, b"${secret.db}$${"])
def test_a_value_is_any_text(store, arranging, secrets, value):
    secrets.set("db", value)
    arranging.assign("web", "a")
    assert values(store, "a") == {"db": value}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("db", b"", "the value is empty"),
        ("db", b"x" * (LARGEST_SECRET + 1), "more than 65536 bytes"),
        ("db", b"hidden\xff", "not UTF-8 text"),
        ("db", b"hidden\0", "zero character"),
        ("Db", b"hidden", "no DNS label"),
        ("a.b", b"hidden", "no DNS label"),
    ],
)
def test_what_no_secret_can_be_is_refused_without_showing_it(store, secrets, name, value, why):
    with pytest.raises(Refused, match=why) as refused:
        secrets.set(name, value)
    assert "hidden" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert store.secrets.names() == ()
