from __future__ import annotations

import hashlib
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.database import Database
from agent.errors import Refused, Unavailable
from agent.host import commands
from agent.kinds import KINDS
from agent.kinds.kind import Machine
from agent.node.ledger import Binding, Ledger, open_ledger
from agent.reconcile import Phase, Reconciler
from agent.resources import Context, Origin, Resource, Trust, parse_list, parse_port

REPOSITORY = Path(__file__).parents[3]
CARRIED, ASSIGNED = Origin.CARRIED, Origin.ASSIGNED


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def ledger(ground: Path) -> Iterator[Ledger]:
    opened = open_ledger(ground, Clock(), write=True)
    yield opened
    opened.close()


def reserved(name: str, *ports: str) -> Resource:
    return parse_list([{"kind": "reserved", "name": name, "ports": list(ports)}], Context(Path("/state")))[0]


def directory(path: str) -> Resource:
    return parse_list([{"kind": "directory", "name": path}], Context(Path("/state")))[0]


def digest(folder: Path) -> dict[str, str]:
    """What is on the disk; the -shm file says only who reads."""
    paths = [path for path in folder.glob("ledger.db*") if not path.name.endswith("-shm")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_how_far_a_resource_got_is_remembered(ledger: Ledger, ground: Path) -> None:
    sshd = reserved("sshd", "22")
    ledger.intend(CARRIED, sshd, 1, found=True)
    entry = ledger.entry(CARRIED, "reserved:sshd")
    assert entry is not None
    assert (entry.phase, entry.found, entry.stamp, entry.position, entry.since) == (Phase.INTENDED, True, "", 1, 101.0)
    ledger.apply(CARRIED, sshd, 2, found=True, stamp="s1")
    ledger.intend(CARRIED, sshd, 3, found=True)
    entry = ledger.entry(CARRIED, "reserved:sshd")
    assert entry is not None
    assert (entry.phase, entry.stamp, entry.position) == (Phase.INTENDED, "s1", 3)
    ledger.leave(CARRIED, "reserved:sshd")
    ledger.leave(CARRIED, "reserved:nobody")
    again = open_ledger(ground, time.time, write=False)
    kept = again.entry(CARRIED, "reserved:sshd")
    assert kept == replace(entry, phase=Phase.LEAVING)
    assert again.entries(CARRIED) == [kept]
    assert again.entries(ASSIGNED) == []
    again.close()
    ledger.forget(CARRIED, "reserved:sshd")
    assert ledger.entry(CARRIED, "reserved:sshd") is None


def test_entries_come_in_the_order_of_their_list(ledger: Ledger, ground: Path) -> None:
    for position, name in ((3, "a"), (1, "b"), (2, "c")):
        ledger.apply(ASSIGNED, reserved(name, str(position)), position, found=False, stamp="s")
    reader = open_ledger(ground, time.time, write=False)
    for one in (ledger, reader):
        assert [entry.resource.name for entry in one.entries(ASSIGNED)] == ["b", "c", "a"]
    reader.close()


def test_the_two_origins_never_touch_each_other(ledger: Ledger) -> None:
    shared = directory("/srv/shared")
    ledger.apply(CARRIED, shared, 1, found=True, stamp="c")
    ledger.apply(ASSIGNED, shared, 7, found=True, stamp="a")
    ledger.fail(CARRIED, shared.id, "carried")
    ledger.fail(ASSIGNED, shared.id, "assigned")
    ledger.forget(CARRIED, shared.id)
    assert ledger.entry(CARRIED, shared.id) is None
    assert ledger.failures(CARRIED) == {}
    entry = ledger.entry(ASSIGNED, shared.id)
    assert entry is not None
    assert (entry.position, entry.stamp) == (7, "a")
    assert ledger.failures(ASSIGNED) == {shared.id: "assigned"}


def test_a_failure_is_kept_until_it_is_over(ledger: Ledger, ground: Path) -> None:
    sshd = reserved("sshd", "22")
    ledger.fail(CARRIED, sshd.id, "because")
    before = digest(ground)
    ledger.fail(CARRIED, sshd.id, "because")
    ledger.clear(ASSIGNED, sshd.id)
    assert digest(ground) == before
    ledger.fail(CARRIED, sshd.id, "for another reason")
    assert ledger.failures(CARRIED) == {sshd.id: "for another reason"}
    ledger.intend(CARRIED, sshd, 1, found=False)
    assert ledger.failures(CARRIED) == {sshd.id: "for another reason"}
    ledger.apply(CARRIED, sshd, 1, found=False, stamp="s")
    assert ledger.failures(CARRIED) == {}
    ledger.fail(CARRIED, sshd.id, "again")
    ledger.clear(CARRIED, sshd.id)
    assert ledger.failures(CARRIED) == {}


def test_failures_of_what_is_neither_here_nor_wanted_end(ledger: Ledger) -> None:
    ledger.apply(CARRIED, reserved("here", "1"), 1, found=False, stamp="s")
    for name in ("here", "wanted", "gone"):
        ledger.fail(CARRIED, f"reserved:{name}", "because")
    ledger.fail(ASSIGNED, "reserved:gone", "because")
    ledger.forget_failures_beside(CARRIED, {"reserved:wanted"})
    assert set(ledger.failures(CARRIED)) == {"reserved:here", "reserved:wanted"}
    assert set(ledger.failures(ASSIGNED)) == {"reserved:gone"}


def test_ports_are_kept_by_protocol_address_number_and_owner(ledger: Ledger) -> None:
    ports = ("53/udp", "53/tcp", "127.0.0.1:5671", "[::1]:5671", "4369")
    ledger.intend(CARRIED, reserved("all", *ports), 1, found=False)
    ledger.apply(ASSIGNED, reserved("other", "127.0.0.2:5671"), 1, found=False, stamp="s")
    assert [(str(one.port), one.origin, one.owner) for one in ledger.bindings()] == [
        ("*:53/tcp", CARRIED, "reserved:all"),
        ("*:53/udp", CARRIED, "reserved:all"),
        ("*:4369/tcp", CARRIED, "reserved:all"),
        ("127.0.0.1:5671/tcp", CARRIED, "reserved:all"),
        ("127.0.0.2:5671/tcp", ASSIGNED, "reserved:other"),
        ("[::1]:5671/tcp", CARRIED, "reserved:all"),
    ]
    ledger.apply(CARRIED, reserved("all", "22"), 1, found=False, stamp="s")
    assert ledger.bindings() == [
        Binding(parse_port("22", "test"), CARRIED, "reserved:all"),
        Binding(parse_port("127.0.0.2:5671", "test"), ASSIGNED, "reserved:other"),
    ]
    ledger.forget(CARRIED, "reserved:all")
    assert [one.owner for one in ledger.bindings()] == ["reserved:other"]


def test_every_kind_is_read_back_as_it_was(ground: Path) -> None:
    class Blobs:
        def facts(self, name: str) -> Any:
            return type("Facts", (), {"sha256": "ab" * 32, "size": 7})()

        def read(self, name: str) -> bytes:
            return b"${param.x} in ${state} $${x} ${secret.key}"

    state = ground / "with space"
    state.mkdir()
    resources = parse_list(
        [
            {"kind": "directory", "name": "${state}-data", "data": True, "owner": "daemon:daemon"},
            {"kind": "secret", "name": "key", "owner": "daemon"},
            {"kind": "certificate", "name": "tls", "hosts": ["a.example", "::1"]},
            {"kind": "file", "name": "/etc/a", "content": "kept ${as} $${it} is"},
            {"kind": "file", "name": "/etc/b", "content": "$$${state} $${x} ${secret.key}", "template": True},
            {"kind": "file", "name": "/etc/c", "blob": "b"},
            {"kind": "file", "name": "/etc/d", "blob": "b", "template": True},
            {"kind": "package", "name": "rabbitmq-server", "masks": ["epmd.socket"]},
            {
                "kind": "service",
                "name": "web",
                "command": ["${agent}", "$${HOME}", "${fingerprint.tls}"],
                "environment": {"KEY": "${secret.key}"},
                "ports": ["[::1]:80", "53/udp"],
                "ready": {"tcp": "127.0.0.1:80"},
                "watches": ["/etc/a"],
            },
            {"kind": "reserved", "name": "sshd", "ports": [22]},
        ],
        Context(state, {"param.x": "${y}"}, Blobs()),
    )
    ledger = open_ledger(state, time.time, write=True)
    for position, resource in enumerate(resources):
        ledger.apply(CARRIED, resource, position, found=False, stamp=resource.digest)
    reader = open_ledger(state, time.time, write=False)
    for resource, entry in zip(resources, reader.entries(CARRIED), strict=True):
        assert entry.resource.id == resource.id
        assert entry.resource.source == resource.source
        assert entry.stamp == entry.resource.digest
        if resource.name != "/etc/c":  # of a blob only the digest is remembered
            assert entry.resource.spec == resource.spec
    ledger.close()
    reader.close()


def test_two_ledgers_of_one_file_see_each_others_work(ledger: Ledger, ground: Path) -> None:
    other = open_ledger(ground, Clock(), write=True)
    sshd = reserved("sshd", "22")
    assert other.entry(CARRIED, sshd.id) is None
    ledger.apply(CARRIED, sshd, 1, found=False, stamp="s1")
    ledger.fail(ASSIGNED, "x", "because")
    entry = other.entry(CARRIED, sshd.id)
    assert entry is not None
    assert entry.stamp == "s1"
    assert other.failures(ASSIGNED) == {"x": "because"}
    other.apply(CARRIED, sshd, 1, found=False, stamp="s2")
    other.clear(ASSIGNED, "x")
    entry = ledger.entry(CARRIED, sshd.id)
    assert entry is not None
    assert entry.stamp == "s2"
    assert ledger.failures(ASSIGNED) == {}
    ledger.forget(CARRIED, sshd.id)
    other.fail(ASSIGNED, "y", "because")
    assert other.entries(CARRIED) == []
    assert ledger.failures(ASSIGNED) == {"y": "because"}
    # What one writes right after the other did doesn't hide what the other wrote.
    ledger.apply(CARRIED, reserved("a", "1"), 1, found=False, stamp="s")
    other.apply(CARRIED, reserved("b", "2"), 2, found=False, stamp="s")
    ledger.apply(CARRIED, reserved("c", "3"), 3, found=False, stamp="s")
    for one in (ledger, other):
        assert [entry.resource.name for entry in one.entries(CARRIED)] == ["a", "b", "c"]
    other.close()


def test_a_thousand_unchanged_resources_write_nothing(ledger: Ledger, ground: Path) -> None:
    (ground / "web").mkdir()
    resources = parse_list(
        [
            *({"kind": "reserved", "name": f"r{at}", "ports": [at]} for at in range(1, 951)),
            *({"kind": "file", "name": f"{ground}/web/{at}", "content": f"{at}"} for at in range(50)),
        ],
        Context(ground),
    )
    machine = Machine(ground, b"k" * 32, lambda name: iter(()))
    reconciler = Reconciler(ledger, machine, KINDS, time.monotonic)
    first = reconciler.apply(resources, ASSIGNED, prune=True, tell=lambda step: None)
    assert (first.changes, first.failed) == (1000, {})
    ledger.note_raised()
    watcher = Database(sqlite3.connect(ground / "ledger.db"), ground / "ledger.db")
    version, before = watcher.data_version(), digest(ground)
    for one in (ledger, open_ledger(ground, time.time, write=True)):
        second = replace(reconciler, record=one).apply(resources, ASSIGNED, prune=True, tell=lambda step: None)
        assert (second.changes, second.failed) == (0, {})
        one.forget_failures_beside(ASSIGNED, {resource.id for resource in resources})
        one.note_raised()
        assert watcher.data_version() == version
        assert digest(ground) == before
        if one is not ledger:
            one.close()
    watcher.close()


def test_milestones_are_kept(ledger: Ledger, ground: Path) -> None:
    assert not ledger.raised_once()
    ledger.note_raised()
    ledger.note_raised()
    reader = open_ledger(ground, time.time, write=False)
    assert reader.raised_once()
    reader.close()


# The word.

OLD, NEW = b"o" * 32, b"n" * 32


def test_the_accepted_word_is_replaced_with_all_that_came_in_it(ledger: Ledger) -> None:
    assert ledger.accepted() is None
    assert ledger.trust() == Trust()
    ledger.apply(ASSIGNED, reserved("here", "1"), 1, found=False, stamp="s")
    ledger.apply(CARRIED, reserved("ours", "2"), 1, found=False, stamp="s")
    ledger.accept(5, b"five", b"s5", OLD, ["a", "b", "a"], Trust((OLD, NEW, OLD), ("p", "q", "p")))
    assert ledger.assigned_or_recovered() == {"a", "b", "reserved:here"}
    assert ledger.trust() == Trust((NEW, OLD), ("p", "q"))
    ledger.accept(6, b"six", b"s6", NEW, ["c"], None)
    word = ledger.accepted()
    assert word is not None
    assert (word.serial, word.data, word.signature, word.signer) == (6, b"six", b"s6", NEW)
    assert ledger.assigned_or_recovered() == {"c", "reserved:here"}
    assert ledger.trust() == Trust((NEW, OLD), ("p", "q"))


def test_what_a_declaration_leaves_out_of_trust_says_nothing(ledger: Ledger) -> None:
    ledger.accept(1, b"1", b"s", OLD, [], Trust((OLD,), ("p",)))
    ledger.accept(2, b"2", b"s", OLD, [], Trust())
    assert ledger.trust() == Trust((OLD,), ("p",))
    ledger.accept(3, b"3", b"s", OLD, [], Trust((NEW,), ()))
    assert ledger.trust() == Trust((NEW,), ("p",))
    ledger.accept(4, b"4", b"s", OLD, [], Trust((), ("q",)))
    assert ledger.trust() == Trust((NEW,), ("q",))


def test_joining_anew_keeps_the_resources_and_maybe_the_serial(ledger: Ledger) -> None:
    here = reserved("here", "1")
    ledger.apply(ASSIGNED, here, 1, found=False, stamp="s")
    ledger.accept(5, b"five", b"s5", OLD, ["a"], Trust((OLD,), ("p",)))
    ledger.begin_anew(keep_serial=True)
    word = ledger.accepted()
    assert word is not None
    assert word.serial == 5
    assert ledger.trust() == Trust()
    ledger.begin_anew(keep_serial=False)
    word = ledger.accepted()
    assert word is not None
    assert (word.serial, word.data, word.signature, word.signer) == (0, b"five", b"s5", OLD)
    assert ledger.assigned_or_recovered() == {"a", here.id}


class Failing(Database):
    """A database that fails at its nth statement."""

    left = 0

    def execute(self, sql: str, parameters: Any = ()) -> int:
        self.left -= 1
        if self.left < 0:
            raise Unavailable("the disk is full")
        return super().execute(sql, parameters)


def failing(path: Path) -> Failing:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    return Failing(connection, path)


def test_accepting_is_one_transaction(ledger: Ledger, ground: Path) -> None:
    ledger.accept(5, b"five", b"s5", OLD, ["a", "b"], Trust((OLD,), ("p",)))
    before = ledger.accepted()
    database = failing(ground / "ledger.db")
    other = Ledger(database, ground, Clock())
    for statements in range(20):
        database.left = statements
        try:
            other.accept(6, b"six", b"s6", NEW, ["c", "d"], Trust((NEW,), ("q",)))
        except Unavailable:
            for one in (ledger, other):
                assert one.accepted() == before
                assert one.assigned_or_recovered() == {"a", "b"}
                assert one.trust() == Trust((OLD,), ("p",))
        else:
            assert statements >= 8
            break
    assert ledger.assigned_or_recovered() == {"c", "d"}
    assert ledger.trust() == Trust((NEW,), ("q",))
    other.close()


def test_what_could_not_be_written_is_not_believed_either(ledger: Ledger, ground: Path) -> None:
    sshd = reserved("sshd", "22")
    ledger.apply(CARRIED, sshd, 1, found=False, stamp="s1")
    ledger.fail(CARRIED, "x", "because")
    database = failing(ground / "ledger.db")
    other = Ledger(database, ground, Clock())
    before = other.entry(CARRIED, sshd.id)
    writes = (
        lambda: other.apply(CARRIED, sshd, 1, found=False, stamp="s2"),
        lambda: other.intend(CARRIED, sshd, 2, found=False),
        lambda: other.leave(CARRIED, sshd.id),
        lambda: other.forget(CARRIED, sshd.id),
        lambda: other.fail(CARRIED, "y", "because"),
        lambda: other.clear(CARRIED, "x"),
    )
    for write in writes:
        for statements in range(2):
            database.left = statements
            if write in writes[-2:] and statements:
                continue  # one statement is all they have
            with pytest.raises(Unavailable):
                write()
            for one in (other, ledger):
                assert one.entry(CARRIED, sshd.id) == before
                assert one.failures(CARRIED) == {"x": "because"}
                assert [str(binding.port) for binding in one.bindings()] == ["*:22/tcp"]
    other.close()


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from agent.database import Database
from agent.node.ledger import Ledger, open_ledger
from agent.resources import Trust

state, statements = Path(sys.argv[1]), int(sys.argv[2])

class Deadly(Database):
    def execute(self, sql, parameters=()):
        global statements
        statements -= 1
        if statements < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(sql, parameters)

opened = open_ledger(state, lambda: 1.0, write=True)
database = Deadly(sqlite3.connect(state / "ledger.db", isolation_level=None), state / "ledger.db")
Ledger(database, state, lambda: 1.0).accept(6, b"six", b"s6", b"n" * 32, ["c"], Trust((b"n" * 32,), ("q",)))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("statements", [0, 1, 3, 99])
def test_a_writer_that_is_killed_leaves_the_old_or_the_new(ground: Path, statements: int) -> None:
    ledger = open_ledger(ground, Clock(), write=True)
    ledger.apply(CARRIED, reserved("sshd", "22"), 1, found=True, stamp="s")
    ledger.accept(5, b"five", b"s5", OLD, ["a"], Trust((OLD,), ("p",)))
    ledger.close()
    done = commands.run([sys.executable, "-c", KILLED, str(ground), str(statements)], directory=REPOSITORY, check=False)
    assert done.code == -signal.SIGKILL
    # The power goes with it: what is on the disk now is all there is.
    copy = ground / "copy"
    copy.mkdir()
    for path in ground.glob("ledger.db*"):
        if not path.name.endswith("-shm"):
            shutil.copy(path, copy)
    for state in (copy, ground):
        again = open_ledger(state, Clock(), write=True)
        word = again.accepted()
        assert word is not None
        assert word.data == (b"six" if statements == 99 else b"five")
        assert again.assigned_or_recovered() == ({"c"} if statements == 99 else {"a"})
        assert again.trust() == (Trust((NEW,), ("q",)) if statements == 99 else Trust((OLD,), ("p",)))
        assert [entry.resource.id for entry in again.entries(CARRIED)] == ["reserved:sshd"]
        again.apply(CARRIED, reserved("sshd", "2222"), 1, found=True, stamp="s")
        again.close()


def test_a_ledger_of_a_newer_agent_is_refused_in_words(ground: Path) -> None:
    open_ledger(ground, Clock(), write=True).close()
    connection = sqlite3.connect(ground / "ledger.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for write in (True, False):
        with pytest.raises(
            Refused, match=r"ledger.db has schema 99, this program knows up to 1; use the newer program"
        ):
            open_ledger(ground, Clock(), write=write)


def test_who_only_looks_makes_nothing(ground: Path) -> None:
    with pytest.raises(Refused, match=r"ledger.db is not there"):
        open_ledger(ground, Clock(), write=False)
    assert list(ground.iterdir()) == []
