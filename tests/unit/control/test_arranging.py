"""A change and all that follows from it are one transaction in the store; a refusal changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from agent.control.arranging import Arranging
from agent.control.assigning import Arrangement
from agent.control.changing import change, settle
from agent.control.declaring import Applied, Declared, RefusedBy, StillWaiting, Waits, items_of, wait_for_report
from agent.control.mesh_secrets import MeshSecrets
from agent.control.modules import read_module
from agent.control.ports import HostPort, PortRange
from agent.control.registry import Refusal
from agent.control.signing import Keyring
from agent.control.store import open_store
from agent.envelope import SigningKey
from agent.errors import Refused
from agent.fields import Fields
from agent.reconcile.change import Change
from agent.resources import Document

NOW = 1_000_000.0
KEY = SigningKey(b"s" * 32)
KEYS = Keyring((KEY,))
FILE = {"kind": "file", "name": "/etc/a", "content": "x"}
SERVICE = {"kind": "service", "name": "server", "command": ["/bin/db"], "ports": ["${port.sql}"]}
DB = {"name": "db", "ports": {"sql": "tcp"}, "params": {"size": 1}, "resource": [SERVICE]}
WEB = {
    "name": "web",
    "ports": {"http": "tcp"},
    "resource": [
        {
            **SERVICE,
            "ports": ["${port.http}"],
            "environment": {"DB": "${address.b}:${port.b.db.sql}"},
        }
    ],
}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "control").mkdir()
    with closing(open_store(tmp_path, migrate=True)) as store:
        for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
            store.nodes.enrol(name, b"k" * 32, b"", {"address": address}, NOW)
            hear(store, name, 0)
        yield store


@pytest.fixture
def answers():
    """What nodes report of what is rolled out to them: failures by node."""
    return {}


@pytest.fixture
def arranging(store, tmp_path, answers):
    def wait(store, name, serial, timeout):
        assert timeout == 9
        if name in answers:
            hear(store, name, serial, failures=answers[name])
        return wait_for_report(store, name, serial, 0)

    arranging = Arranging(tmp_path, store, lambda: KEYS, lambda: NOW, wait)
    arranging.add_module(read_module(Fields(DB)))
    arranging.add_module(read_module(Fields(WEB)))
    return arranging


def hear(store, name, serial, *, holdings=(), failures=None, **fields):
    """What a report of the node does to its record."""
    node = store.nodes.get(name)
    store.nodes.save(
        replace(
            node,
            last_seen=NOW,
            reported=serial,
            reported_at=NOW,
            holdings=holdings,
            holdings_serial=serial,
            failures=failures or {},
            **fields,
        )
    )


def version(document, **fields):
    return read_module(Fields({**document, **fields}))


def items(store, node):
    wanted = store.declarations.wanted(node)
    return items_of(wanted) if wanted else None


def serials(store):
    return {name: store.nodes.get(name).wanted for name in store.nodes.names()}


def environment(store):
    return items(store, "a")[0]["environment"]["DB"]


def document(*items, **params):
    return Document(params, items)


def test_a_declared_list_and_assignments_stand_side_by_side(store, arranging):
    assert arranging.declare("a", document(FILE), {}) == Declared("a", 1, has_spoken=True)
    assert arranging.assign("db", "a", "sql") == Declared("a", 2, has_spoken=True)
    arranging.declare("a", document({**FILE, "content": "y"}), {})
    assert [f"{item['kind']}:{item['name']}" for item in items(store, "a")] == ["file:/etc/a", "service:sql-server"]
    arranging.declare("a", document(), {}, retire=True)
    assert [item["name"] for item in items(store, "a")] == ["sql-server"]
    arranging.unassign("sql", "a")
    assert items(store, "a") == ()
    assert serials(store) == {"a": 5, "b": 0}


def test_an_empty_list_has_to_say_that_it_is_meant(store, arranging):
    with pytest.raises(Refused, match="--retire"):
        arranging.declare("a", document(), {})
    assert items(store, "a") is None
    arranging.declare("a", document(), {}, retire=True)
    assert items(store, "a") == ()


def test_ports_stay_the_same_whatever_is_declared_around_them(store, arranging):
    arranging.assign("db", "a", "one")
    arranging.assign("db", "a", "two")
    before = arranging.ports()
    assert [(row.port, row.assignment, row.name) for row in before] == [
        (HostPort("tcp", 20000), "one", "sql"),
        (HostPort("tcp", 20001), "two", "sql"),
    ]
    arranging.declare("a", document(FILE), {})
    arranging.set_port_range(PortRange(30000, 30009))
    arranging.assign("db", "a", "three")
    assert arranging.ports()[:2] == before
    assert arranging.ports()[2].port.number == 30000


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("dbs", "a"), 'no module "dbs"; did you mean "db"'),
        (("db", "bb"), 'no node "bb"; did you mean "b"'),
        (("db", "a", "Db"), "no DNS label"),
        (("db", "a", "db", {"sise": "1"}), 'no parameter "sise" here; did you mean "size"'),
        (("web", "a"), r'port\.b\.db\.sql.* nothing called "db" is assigned to b'),
    ],
)
def test_what_is_refused_changes_nothing(store, arranging, asked, why):
    with pytest.raises(Refused, match=why):
        arranging.assign(*asked)
    assert serials(store) == {"a": 0, "b": 0}
    assert store.arrangements.all() == {}


def test_who_refers_to_a_port_is_declared_again_when_that_changes(store, arranging):
    arranging.assign("db", "b")
    arranging.assign("web", "a")
    assert environment(store) == "10.0.0.2:20000"
    hear(store, "b", 1, carried=(20000,))
    again = arranging.declare("b", document(FILE), {})
    assert again == Declared("b", 2, has_spoken=True, also=(Declared("a", 2, has_spoken=True),))
    assert environment(store) == "10.0.0.2:20001"
    arranging.declare("b", document(FILE), {})
    assert serials(store) == {"a": 2, "b": 3}  # nothing changed for a


def test_who_refers_to_an_address_is_declared_again_when_that_changes(store, arranging):
    arranging.assign("db", "b")
    arranging.assign("web", "a")
    with store.transaction():
        store.nodes.enrol("b", b"k" * 32, b"", {"address": "10.9.9.9"}, NOW)
        settle(store, KEYS, "b", NOW)
    assert environment(store) == "10.9.9.9:20000"
    assert serials(store) == {"a": 2, "b": 1}


@pytest.mark.parametrize("told", ["", 'x"; rm -r /', "10.0.0.2 evil", "10.0.0.2\n", 5, None])
def test_what_is_no_address_is_filled_in_nowhere(store, arranging, told):
    arranging.assign("db", "b")
    store.nodes.enrol("b", b"k" * 32, b"", {"address": told}, NOW)
    with pytest.raises(Refused, match="b has not said at which address others reach it"):
        arranging.assign("web", "a")


def test_the_keys_are_those_of_the_moment_at_which_it_is_signed(store, tmp_path):
    """A key that another process makes or retires counts, or counts no more, for all that is signed after it."""

    def keys():
        other = sqlite3.connect(tmp_path / "control" / "store.db", timeout=0)
        with closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        return KEYS

    arranging = Arranging(tmp_path, store, keys, lambda: NOW)
    arranging.declare("a", document({**FILE, "template": True, "content": "${param.x}"}, x="1"), {})
    MeshSecrets(tmp_path, store, keys, lambda: NOW, bytes).set("db", b"value")
    assert serials(store) == {"a": 1, "b": 0}


def test_what_others_refer_to_cannot_be_taken_away(store, arranging):
    arranging.assign("db", "b")
    arranging.assign("web", "a")
    before = store.arrangements.all()
    with pytest.raises(Refused, match=r"a refers to b, and could not be declared any more: .*environment\.DB"):
        arranging.unassign("db", "b")
    assert serials(store) == {"a": 1, "b": 1}
    assert store.arrangements.all() == before
    arranging.unassign("web", "a")
    arranging.unassign("db", "b")


def test_what_is_assigned_before_the_first_report_waits_for_it(store, arranging):
    store.nodes.enrol("new", b"k" * 32, b"", {}, NOW)
    assert arranging.assign("db", "new") == Waits("new")
    assert items(store, "new") is None
    assert arranging.ports() == ()
    assert store.arrangements.waits("new")
    hear(store, "new", 0, carried=(20000,))
    with store.transaction():
        settle(store, KEYS, "new", NOW)
    assert items(store, "new")[0]["ports"] == ["20001"]
    assert not store.arrangements.waits("new")


def test_what_cannot_be_declared_at_the_first_report_is_said_and_waits_on(store, arranging, caplog):
    store.nodes.enrol("new", b"k" * 32, b"", {}, NOW)
    arranging.set_port_range(PortRange(20000, 20000))
    arranging.assign("db", "new")
    hear(store, "new", 0, carried=(20000,))
    with store.transaction():
        settle(store, KEYS, "new", NOW)
    assert "new has no tcp port left in 20000-20000: it carries 1 there" in caplog.text
    assert store.arrangements.waits("new")
    assert items(store, "new") is None


def test_an_unassigned_port_is_free_once_the_removal_is_reported(store, arranging):
    arranging.assign("db", "a", "one")
    hear(store, "a", 1, holdings=("service:one-server",))
    arranging.unassign("one", "a")
    arranging.assign("db", "a", "two")
    assert [(row.port.number, row.assignment, row.freed) for row in arranging.ports()] == [
        (20000, "one", 2),
        (20001, "two", None),
    ]
    hear(store, "a", 3, holdings=("service:two-server",))
    assert [(row.port.number, row.assignment) for row in arranging.ports()] == [(20001, "two")]
    arranging.assign("db", "a", "three")
    assert [(row.port.number, row.assignment) for row in arranging.ports()] == [(20000, "three"), (20001, "two")]


def test_a_version_moves_nobody_until_it_is_rolled_out(store, arranging):
    arranging.assign("db", "a")
    assert arranging.add_module(version(DB)).number == 1  # the same content is the same version
    newer = version(DB, resource=[{**SERVICE, "command": ["/bin/db", "--new"]}])
    assert arranging.add_module(newer).number == 2
    arranging.declare("a", document(FILE), {})
    assert items(store, "a")[1]["command"] == ["/bin/db"]
    assert [(row.name, row.version, row.assigned) for row in arranging.modules()] == [
        ("db", 2, (("a", "db", 1),)),
        ("web", 1, ()),
    ]
    arranging.assign("db", "a", "other")
    assert items(store, "a")[2]["command"] == ["/bin/db", "--new"]


def newer_db(arranging, word="--new"):
    arranging.add_module(version(DB, resource=[{**SERVICE, "command": ["/bin/db", word]}]))


def test_a_roll_out_goes_from_node_to_node_and_stops_at_the_first_that_fails(store, arranging, answers):
    for node in ("a", "b"):
        arranging.assign("db", node)
        hear(store, node, 1)
    newer_db(arranging)
    ports = arranging.ports()
    answers["a"] = {"service:db-server": "no"}
    (step,) = arranging.roll("db", timeout=9)
    assert (step.declared.serial, step.outcome) == (2, Applied({"service:db-server": "no"}))
    assert serials(store) == {"a": 2, "b": 1}
    # The next attempt begins with the node that isn't well yet, and declares nothing new to it.
    assert [step.outcome for step in arranging.roll("db", timeout=9)] == [Applied({"service:db-server": "no"})]
    answers.update(a={}, b={})
    assert [step.declared.node for step in arranging.roll("db", timeout=9)] == ["a", "b"]
    assert serials(store) == {"a": 2, "b": 2}
    assert list(arranging.roll("db", timeout=9)) == []
    assert arranging.ports() == ports


def test_a_roll_out_stops_at_a_refusal(store, arranging):
    for node in ("a", "b"):
        arranging.assign("db", node)
    newer_db(arranging)
    (step,) = arranging.roll("db", timeout=9)
    assert step.outcome == StillWaiting()
    store.nodes.save(replace(store.nodes.get("a"), refusal=Refusal("not here", 2, NOW)))
    (step,) = arranging.roll("db", timeout=9)
    assert step.outcome == RefusedBy("not here")
    assert not step.is_fine


def test_one_node_alone_can_be_moved(store, arranging, answers):
    for node in ("a", "b"):
        arranging.assign("db", node)
    newer_db(arranging)
    answers["b"] = {}
    assert [step.declared.node for step in arranging.roll("db", "b", timeout=9)] == ["b"]
    assert serials(store) == {"a": 1, "b": 2}
    with pytest.raises(Refused, match="web is not assigned to b"):
        list(arranging.roll("web", "b"))
    with pytest.raises(Refused, match='no node "bb"'):
        list(arranging.roll("web", "bb"))


def test_a_module_that_is_assigned_is_not_removed(arranging):
    arranging.assign("db", "a", "sql")
    with pytest.raises(Refused, match=r"db is assigned \(sql on a\)"):
        arranging.remove_module("db")
    arranging.unassign("sql", "a")
    arranging.remove_module("db")
    with pytest.raises(Refused, match='no module "db"'):
        arranging.module("db")


def test_going_back_declares_earlier_content_under_a_new_serial(store, arranging):
    arranging.declare("a", document(FILE), {})
    arranging.assign("db", "a")
    first = items(store, "a")
    newer_db(arranging)
    list(arranging.roll("db", timeout=9))
    arranging.unassign("db", "a")
    arranging.declare("a", document({**FILE, "content": "y"}), {})
    assert arranging.rollback("a").serial == 6
    assert [item["name"] for item in items(store, "a")] == ["/etc/a"]
    assert arranging.rollback("a", 2).serial == 7
    assert items(store, "a") == first
    # What is arranged is what it was: the next change starts from there.
    arranging.declare("a", document(), {}, retire=True)
    assert [item["command"] for item in items(store, "a")] == [["/bin/db"]]
    assert [(row.port.number, row.freed) for row in arranging.ports()] == [(20000, None)]


@pytest.mark.parametrize(
    ("to", "why"), [(None, "a was never declared anything else"), (9, "No declaration 9 of a is kept; kept are 2, 1")]
)
def test_where_there_is_nothing_to_go_back_to_it_is_said(store, arranging, to, why):
    for _ in range(2):
        arranging.declare("a", document(FILE), {})
    with pytest.raises(Refused, match=why):
        arranging.rollback("a", to)


def test_going_back_to_a_removed_module_is_refused(store, arranging):
    arranging.assign("db", "a")
    arranging.unassign("db", "a")
    arranging.remove_module("db")
    with pytest.raises(Refused, match="version 1 of the module db, which has been removed"):
        arranging.rollback("a")
    assert serials(store)["a"] == 2


def test_a_plan_declares_nothing(store, arranging):
    arranging.declare("a", document(FILE), {})
    arranging.assign("db", "a")
    planned = arranging.plan("a", document({**FILE, "content": "${param.x}", "template": True}, x="1"), {"x": "2"})
    assert [(line.id, line.change) for line in planned.lines] == [
        ("file:/etc/a", Change.CHANGE),
        ("service:db-server", Change.KEEP),
    ]
    assert "-x\n" in planned.lines[0].difference
    assert "+2\n" in planned.lines[0].difference
    assert not arranging.plan("a", None, {}).changes
    assert [line.change for line in arranging.plan("a", document(), {}).lines] == [Change.KEEP, Change.REMOVE]
    assert serials(store)["a"] == 2


def test_what_dies_half_way_leaves_nothing(store, arranging):
    arranging.assign("db", "b")
    arranging.assign("web", "a")
    before = store.arrangements.all(), serials(store)

    def half():
        with store.transaction():
            change(store, KEYS, "b", lambda _: Arrangement(), NOW)

    hear(store, "b", 1, carried=(20000,))

    def dying():
        with store.transaction():
            change(store, KEYS, "b", lambda arrangement: arrangement, NOW)
            raise ZeroDivisionError

    with pytest.raises(Refused, match="a refers to b"):
        half()
    with pytest.raises(ZeroDivisionError):
        dying()
    assert (store.arrangements.all(), serials(store)) == before


def test_an_arrangement_comes_back_as_it_was_saved(store, arranging, tmp_path):
    arranging.declare("a", document(FILE, size="1"), {"size": "2"})
    arranging.assign("db", "a", "one", {"size": "7"})
    arranging.assign("db", "a", "two")
    arranging.unassign("one", "a")
    saved = store.arrangements.get("a")
    assert saved.own.settings == {"size": "2"}
    assert (saved.assignments[0].name, saved.assignments[0].holders) == ("two", ("service:two-server",))
    assert (saved.released[0].assignment, saved.released[0].serial) == ("one", 4)
    with closing(open_store(tmp_path)) as other:
        assert other.arrangements.get("a") == saved
        assert other.arrangements.kept("a", 4) == saved
        assert other.modules.newest("db") == store.modules.get("db", 1)
