"""The reconciler with the real kinds on real files, on a record in memory and on the ledger."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Unavailable
from agent.kinds import marks, places
from agent.kinds.certificate import Certificate
from agent.kinds.directory import Directory
from agent.kinds.file import File
from agent.kinds.kind import Machine, Mark, Verb
from agent.kinds.reserved import Reserved
from agent.kinds.secret import Secret
from agent.node.ledger import open_ledger
from agent.reconcile import Entry, Kinds, Outcome, Phase, Reconciler, Record, Step, Surveyor
from agent.resources import Context, Origin, Resource, parse_list
from tests.marked import mark_of, put_mark

NOBODY = pwd.getpwnam("nobody")
KINDS: Kinds = {
    "certificate": Certificate(),
    "directory": Directory(),
    "file": File(),
    "reserved": Reserved(),
    "secret": Secret(),
}


class Memory:
    """A record that lives as long as the test."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Origin, str], Entry] = {}
        self._failures: dict[tuple[Origin, str], str] = {}

    def entries(self, origin: Origin) -> Sequence[Entry]:
        own = [entry for (whose, _), entry in self._entries.items() if whose is origin]
        return sorted(own, key=lambda entry: entry.position)

    def entry(self, origin: Origin, id: str) -> Entry | None:
        return self._entries.get((origin, id))

    def failures(self, origin: Origin) -> Mapping[str, str]:
        return {id: why for (whose, id), why in self._failures.items() if whose is origin}

    def intend(self, origin: Origin, resource: Resource, position: int, *, found: bool) -> None:
        earlier = self.entry(origin, resource.id)
        stamp = earlier.stamp if earlier else ""
        entry = Entry(origin, resource, position, found, stamp, Phase.INTENDED, 0.0)
        self._entries[origin, resource.id] = entry

    def apply(self, origin: Origin, resource: Resource, position: int, *, found: bool, stamp: str) -> None:
        entry = Entry(origin, resource, position, found, stamp, Phase.APPLIED, 0.0)
        self._entries[origin, resource.id] = entry
        self.clear(origin, resource.id)

    def fail(self, origin: Origin, id: str, why: str) -> None:
        self._failures[origin, id] = why

    def clear(self, origin: Origin, id: str) -> None:
        self._failures.pop((origin, id), None)

    def leave(self, origin: Origin, id: str) -> None:
        self._entries[origin, id] = replace(self._entries[origin, id], phase=Phase.LEAVING)

    def forget(self, origin: Origin, id: str) -> None:
        self._entries.pop((origin, id), None)
        self.clear(origin, id)


class Crash(BaseException):
    """The agent's death: no `except Exception` sees it."""


@dataclass
class Fuse:
    """Counts the steps of a run, and is the agent's death at one of them."""

    at: int = -1
    burnt: int = 0
    steps: list[str] = field(default_factory=list)

    def burn(self, step: str) -> None:
        if self.burnt == self.at:
            raise Crash(step)
        self.burnt += 1
        self.steps.append(step)


class Brittle:
    """Does what `inner` does; dies before or after one of the named methods, as the fuse says."""

    def __init__(self, inner: object, fuse: Fuse, methods: frozenset[str]) -> None:
        self._inner = inner
        self._fuse = fuse
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in self._methods:
            return method

        def brittle(*arguments: Any, **named: Any) -> Any:
            self._fuse.burn(f"before {name}")
            result = method(*arguments, **named)
            self._fuse.burn(f"after {name}")
            return result

        return brittle


TOUCHING = frozenset({"preserve", "apply", "remove"})
WRITING = frozenset({"intend", "apply", "fail", "clear", "leave", "forget"})


@dataclass
class World:
    """One machine. The record outlives the agent, which is made anew for every run."""

    ground: Path
    reopen: Callable[[], Record]
    told: list[Step] = field(default_factory=list)
    fuse: Fuse = field(default_factory=Fuse)

    @property
    def state(self) -> Path:
        return self.ground / "state"

    @property
    def machine(self) -> Machine:
        return Machine(self.state, b"k" * 32, lambda name: iter(()))

    def list(self, *items: Mapping[str, object], beside: Sequence[Resource] = ()) -> tuple[Resource, ...]:
        """Names that don't begin at / and aren't a secret's or a certificate's lie on the ground."""
        placed = [
            {**item, "name": f"{self.ground}/{item['name']}"} if item["kind"] in ("file", "directory") else item
            for item in items
        ]
        return parse_list(placed, Context(self.state), beside=[one.id for one in beside])

    def reconciler(self, kinds: Kinds = KINDS) -> Reconciler:
        record: Any = Brittle(self.reopen(), self.fuse, WRITING)
        brittle: Any = {name: Brittle(kind, self.fuse, TOUCHING) for name, kind in kinds.items()}
        return Reconciler(record, self.machine, brittle, lambda: 0.0)

    def surveyor(self) -> Surveyor:
        return Surveyor(self.reopen(), self.machine, KINDS)

    def apply(self, wanted: Sequence[Resource], origin: Origin = Origin.ASSIGNED, *, prune: bool = True) -> Outcome:
        self.told.clear()
        return self.reconciler().apply(wanted, origin, prune=prune, tell=self.told.append)

    def reset(self) -> Mapping[str, str]:
        self.told.clear()
        return self.reconciler().remove_everything(self.told.append)

    def steps(self) -> list[tuple[str, str]]:
        """What was told: the name without the ground, and what happened."""
        return [(step.id.replace(f"{self.ground}/", ""), step.what) for step in self.told]

    def held(self) -> list[str]:
        """What the record holds, both origins."""
        record = self.reopen()
        return [entry.resource.id for origin in Origin for entry in record.entries(origin)]

    def snapshot(self) -> dict[str, object]:
        """Every file's times and content, the agent's own ones included, but for the ledger's."""
        return {
            str(path): (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns, path.lstat().st_ino)
            for path in sorted(self.ground.rglob("*"))
            if not path.name.startswith("ledger.db") and path != self.state
        }


def in_memory(state: Path) -> Iterator[Callable[[], Record]]:
    record = Memory()
    yield lambda: record


def in_ledger(state: Path) -> Iterator[Callable[[], Record]]:
    """Each opening is another connection to the same file, as another process has it."""
    opened = []

    def reopen() -> Record:
        while opened:
            opened.pop().close()
        opened.append(open_ledger(state, lambda: 0.0, write=True))
        return opened[-1]

    yield reopen
    while opened:
        opened.pop().close()


@pytest.fixture(params=[in_memory, in_ledger])
def world(request, ground: Path) -> Iterator[World]:
    (ground / "state").mkdir(mode=0o711)
    records = request.param(ground / "state")
    yield World(ground, next(records))
    next(records, None)


def directory(name: str, **spec: object) -> dict[str, object]:
    return {"kind": "directory", "name": name, **spec}


def file(name: str, content: str = "ours\n", **spec: object) -> dict[str, object]:
    return {"kind": "file", "name": name, "content": content, **spec}


def secret(name: str) -> dict[str, object]:
    return {"kind": "secret", "name": name}


def facts(path: Path) -> tuple[bytes, int, int, int]:
    status = path.stat()
    return path.read_bytes(), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid


# Making.


def test_the_order_of_the_list_is_the_order_of_the_work(world: World) -> None:
    wanted = world.list(directory("a"), file("a/1"), directory("a/b"), file("a/b/2"))
    outcome = world.apply(wanted)
    assert outcome == Outcome(changes=4, failed={})
    assert world.steps() == [
        ("directory:a", "created"),
        ("file:a/1", "created"),
        ("directory:a/b", "created"),
        ("file:a/b/2", "created"),
    ]
    assert [(step.index, step.total) for step in world.told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert world.held() == [one.id for one in wanted]


def test_a_second_run_plans_nothing_touches_nothing_and_writes_nothing(world: World) -> None:
    wanted = world.list(
        directory("a"),
        secret("s"),
        {"kind": "certificate", "name": "c"},
        file("a/1", "${secret.s} ${fingerprint.c}", template=True),
        {"kind": "reserved", "name": "ssh", "ports": ["22"]},
    )
    assert world.apply(wanted) == Outcome(changes=5)
    before = world.snapshot()
    assert {finding.verb for finding in world.surveyor().survey(wanted, Origin.ASSIGNED)} == {Verb.KEEP}
    world.fuse.steps.clear()
    assert world.apply(wanted) == Outcome()
    assert {what for _, what in world.steps()} == {"kept"}
    assert world.snapshot() == before
    # An old failure is over: that is the one thing that may be written, and here there was none.
    assert set(world.fuse.steps) <= {"before clear", "after clear"}


def test_a_survey_tells_and_touches_nothing(world: World) -> None:
    wanted = world.list(directory("a"), file("b"), secret("s"), file("c", "${secret.s}", template=True))
    (world.ground / "b").write_bytes(b"theirs")
    before = world.snapshot()
    findings = world.surveyor().survey(wanted, Origin.ASSIGNED)
    assert [(finding.verb, finding.reason) for finding in findings] == [
        (Verb.CREATE, "not there yet"),
        (Verb.CHANGE, "other content"),
        (Verb.CREATE, "not there yet"),
        (Verb.CREATE, "not there yet"),
    ]
    assert world.snapshot() == before
    assert world.held() == []


def test_a_failure_is_a_value_and_not_the_end(world: World) -> None:
    (world.ground / "b").symlink_to("nowhere")
    wanted = world.list(file("a"), file("b"), file("c"))
    outcome = world.apply(wanted)
    why = f"{world.ground}/b is a symbolic link, not a file; move it away or choose another path."
    assert outcome == Outcome(changes=2, failed={wanted[1].id: why})
    assert world.reopen().failures(Origin.ASSIGNED) == {wanted[1].id: why}
    assert world.steps() == [("file:a", "created"), ("file:b", "failed"), ("file:c", "created")]
    (world.ground / "b").unlink()
    assert world.apply(wanted) == Outcome(changes=1)
    assert world.reopen().failures(Origin.ASSIGNED) == {}


def test_an_error_of_our_own_is_a_value_too(world: World, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(File):
        def apply(self, *arguments: object) -> None:
            raise ZeroDivisionError("nobody foresaw this")

    kinds = {**KINDS, "file": Broken()}
    wanted = world.list(file("a"), directory("b"))
    outcome = world.reconciler(kinds).apply(wanted, Origin.ASSIGNED, prune=True, tell=world.told.append)
    assert outcome.failed[wanted[0].id].startswith("an error of the agent's own (ZeroDivisionError: ")
    assert outcome.changes == 1
    assert "nobody foresaw this" in caplog.text


def test_what_needs_a_failed_one_is_not_tried(world: World) -> None:
    (world.ground / "a").symlink_to("nowhere")
    needed = f"file:{world.ground}/a"
    wanted = world.list(file("a"), file("b", needs=[needed]), file("c", needs=[f"file:{world.ground}/b"]))
    outcome = world.apply(wanted)
    assert outcome.failed[wanted[1].id] == f"it needs {needed}, which failed"
    assert outcome.failed[wanted[2].id] == f"it needs {wanted[1].id}, which failed"
    assert not (world.ground / "b").exists()
    (world.ground / "a").unlink()
    assert world.apply(wanted) == Outcome(changes=3)


def test_a_need_among_the_carried_must_be_here_and_well(world: World) -> None:
    carried = world.list(file("a"))
    assigned = world.list(file("b", needs=[carried[0].id]), beside=carried)
    assert world.apply(assigned).failed == {
        assigned[0].id: f"it needs {carried[0].id}, which is not on this machine now"
    }
    world.apply(carried, Origin.CARRIED)
    assert world.apply(assigned) == Outcome(changes=1)
    (world.ground / "a").unlink()
    (world.ground / "a").mkdir()
    world.apply(carried, Origin.CARRIED)
    assert world.apply(assigned).failed == {assigned[0].id: f"it needs {carried[0].id}, which failed"}


def test_a_lost_secret_fails_what_uses_it_and_changes_nothing(world: World) -> None:
    wanted = world.list(secret("s"), file("a", "${secret.s}", template=True))
    world.apply(wanted)
    before = facts(world.ground / "a")
    (world.state / "secrets" / "root" / "s").unlink()
    outcome = world.apply(wanted)
    assert "is lost" in outcome.failed["secret:s"]
    assert outcome.failed[wanted[1].id] == "it needs secret:s, which failed"
    assert facts(world.ground / "a") == before


def test_a_new_secret_changes_what_uses_it_and_is_told_nowhere(world: World) -> None:
    wanted = world.list(secret("s"), file("a", "key=${secret.s}", template=True))
    world.apply(wanted)
    stamp = mark_of(world.ground / "a")
    (world.state / "secrets" / "root" / "s").write_bytes(b"ab" * 32)
    assert world.apply(wanted) == Outcome(changes=1)
    assert (world.ground / "a").read_text() == "key=" + "ab" * 32
    assert mark_of(world.ground / "a") != stamp
    assert "abab" not in repr(world.told)


def test_a_new_declaration_of_the_same_content_is_only_noted(world: World) -> None:
    world.apply(world.list(file("a", "same"), file("b")))
    before = world.snapshot()
    swapped = world.list(file("b"), file("a", "same", template=True))
    assert world.apply(swapped) == Outcome()
    assert world.snapshot() == before
    record = world.reopen()
    assert [entry.resource.id for entry in record.entries(Origin.ASSIGNED)] == [one.id for one in swapped]
    assert record.entry(Origin.ASSIGNED, swapped[1].id).stamp == swapped[1].digest


def test_a_stop_is_heard_between_two_resources(world: World) -> None:
    wanted = world.list(file("a"), file("b"))
    stops = iter([False, True])
    outcome = world.reconciler().apply(
        wanted, Origin.ASSIGNED, prune=True, tell=world.told.append, stop=lambda: next(stops)
    )
    assert outcome == Outcome(changes=1, interrupted=True)
    assert not (world.ground / "b").exists()


def test_a_kind_nobody_knows_is_that_resources_failure(world: World) -> None:
    wanted = world.list(file("a"), directory("b"))
    outcome = world.reconciler({"directory": Directory()}).apply(
        wanted, Origin.ASSIGNED, prune=True, tell=world.told.append
    )
    assert list(outcome.failed) == [wanted[0].id]
    assert outcome.changes == 1


# Letting go.


def test_a_dropped_one_goes_just_before_its_successor(world: World) -> None:
    world.apply(world.list(file("first"), file("a"), file("last")))
    wanted = world.list(file("new"), directory("a"), file("a/1"))
    assert world.apply(wanted) == Outcome(changes=6)
    assert world.steps() == [
        ("file:new", "created"),
        ("file:a", "removed"),
        ("directory:a", "created"),
        ("file:a/1", "created"),
        ("file:last", "removed"),
        ("file:first", "removed"),
    ]


def test_a_dropped_one_is_let_go_for_its_successor_without_a_prune(world: World) -> None:
    world.apply(world.list(file("a"), file("b")), Origin.CARRIED)
    assert world.apply(world.list(directory("a")), Origin.CARRIED, prune=False) == Outcome(changes=2)
    assert (world.ground / "b").exists()
    assert sorted(world.held()) == [f"directory:{world.ground}/a", f"file:{world.ground}/b"]


def test_nothing_is_pruned_after_a_failure(world: World) -> None:
    world.apply(world.list(file("a"), file("b")))
    (world.ground / "c").mkdir()
    outcome = world.apply(world.list(file("c")))
    assert list(outcome.failed) == [f"file:{world.ground}/c"]
    assert (world.ground / "a").exists()
    assert len(world.held()) == 2
    (world.ground / "c").rmdir()
    world.apply(world.list(file("c")))
    assert world.steps() == [("file:c", "created"), ("file:b", "removed"), ("file:a", "removed")]
    assert world.held() == [f"file:{world.ground}/c"]


def test_pruning_goes_in_reverse_so_that_directories_are_empty(world: World) -> None:
    world.apply(world.list(directory("a"), directory("a/b"), file("a/b/1")))
    assert world.apply(()) == Outcome(changes=3)
    assert world.steps() == [
        ("file:a/b/1", "removed"),
        ("directory:a/b", "removed"),
        ("directory:a", "removed"),
    ]
    assert not (world.ground / "a").exists()


def test_an_origin_prunes_only_its_own(world: World) -> None:
    world.apply(world.list(file("carried")), Origin.CARRIED)
    world.apply(world.list(file("assigned")))
    world.apply((), Origin.CARRIED)
    assert not (world.ground / "carried").exists()
    assert world.held() == [f"file:{world.ground}/assigned"]


def test_a_shared_directory_goes_with_its_last_origin(world: World) -> None:
    shared = world.list(directory("a"))
    world.apply(shared, Origin.CARRIED)
    assert world.apply(shared) == Outcome(changes=1)
    assert world.steps() == [("directory:a", "adopted")]
    assert world.apply(shared) == Outcome()
    world.apply((), Origin.CARRIED)
    assert world.steps() == [("directory:a", "kept")]
    assert (world.ground / "a").is_dir()
    world.apply(())
    assert world.steps() == [("directory:a", "removed")]
    assert not (world.ground / "a").exists()


def test_a_shared_found_directory_is_found_for_both(world: World) -> None:
    (world.ground / "a").mkdir(mode=0o700)
    shared = world.list(directory("a"))
    world.apply(shared, Origin.CARRIED)
    world.apply(shared)
    world.apply((), Origin.CARRIED)
    world.apply(())
    assert world.steps() == [("directory:a", "given back")]
    assert stat.S_IMODE((world.ground / "a").stat().st_mode) == 0o700


def test_a_found_file_comes_back_byte_for_byte(world: World) -> None:
    before = bytes(range(256)) * 5000
    (world.ground / "a").write_bytes(before)
    os.chown(world.ground / "a", NOBODY.pw_uid, NOBODY.pw_gid)
    (world.ground / "a").chmod(0o4711)
    for content in ("first", "second"):
        world.apply(world.list(file("a", content)))
        assert facts(world.ground / "a") == (content.encode(), 0o644, 0, 0)
    world.apply(())
    assert world.steps() == [("file:a", "given back")]
    assert facts(world.ground / "a") == (before, 0o4711, NOBODY.pw_uid, NOBODY.pw_gid)


def test_a_found_directory_is_left_and_a_made_one_with_others_things_is_named(world: World) -> None:
    (world.ground / "found").mkdir()
    world.apply(world.list(directory("found"), directory("made")))
    for name in ("found", "made"):
        (world.ground / name / "theirs").write_bytes(b"")
    world.apply(())
    assert world.steps() == [("directory:made", "left"), ("directory:found", "given back")]
    assert f"take it away with `rm -r {world.ground}/made`" in world.told[0].detail
    assert (world.ground / "made" / "theirs").exists()
    assert (world.ground / "found" / "theirs").exists()
    assert world.held() == []


def test_secrets_and_data_outlive_a_prune_but_not_a_reset(world: World) -> None:
    wanted = world.list(secret("s"), directory("data", data=True))
    for _ in range(2):
        world.apply(wanted)
        (world.ground / "data" / "rows").write_bytes(b"rows")
        world.apply(())
        assert world.steps() == [("directory:data", "left"), ("secret:s", "left")]
    assert (world.ground / "data" / "rows").read_bytes() == b"rows"
    world.apply(wanted)
    assert world.steps() == [("secret:s", "adopted"), ("directory:data", "adopted")]
    assert world.reset() == {}
    assert not (world.ground / "data").exists()
    assert not (world.state / "secrets" / "root").exists()


def test_a_reset_takes_everything_assigned_first_and_last_first(world: World) -> None:
    world.apply(world.list(directory("a"), file("a/carried")), Origin.CARRIED)
    world.apply(world.list(file("a/1"), file("a/2")))
    assert world.reset() == {}
    assert [id for id, _ in world.steps()] == ["file:a/2", "file:a/1", "file:a/carried", "directory:a"]
    assert world.held() == []
    assert not (world.ground / "a").exists()


def test_what_cannot_be_removed_stays_recorded_with_its_reason(world: World) -> None:
    class Stuck(File):
        def remove(self, *arguments: object, **named: object) -> Any:
            raise Unavailable("The disk is away; put it back.")

    wanted = world.list(file("a"), {"kind": "reserved", "name": "ssh", "ports": ["22"]})
    world.apply(wanted)
    reconciler = world.reconciler({**KINDS, "file": Stuck()})
    assert reconciler.remove_everything(world.told.append) == {wanted[0].id: "The disk is away; put it back."}
    assert world.held() == [wanted[0].id]
    assert world.reset() == {}
    assert world.held() == []


def test_a_directory_is_ours_until_what_lies_in_it_could_be_removed(world: World) -> None:
    class Stuck(File):
        def remove(self, *arguments: object, **named: object) -> Any:
            raise Unavailable("The disk is away; put it back.")

    wanted = world.list(directory("a"), directory("b"), file("a/1"))
    world.apply(wanted)
    failed = world.reconciler({**KINDS, "file": Stuck()}).remove_everything(world.told.append)
    assert list(failed) == [wanted[2].id, wanted[0].id]
    assert world.reset() == {}
    assert sorted(path.name for path in world.ground.iterdir()) == ["state"]


# Losing the ledger.


def test_a_lost_ledger_adopts_what_bears_the_mark(ground: Path) -> None:
    (ground / "state").mkdir(mode=0o711)
    (ground / "found").write_bytes(b"theirs")
    first, second = Memory(), Memory()
    world = World(ground, lambda: first)
    wanted = world.list(file("found"), file("made"), directory("folder"), secret("s"))
    world.apply(wanted)
    before = world.snapshot()
    world.reopen = lambda: second
    assert world.apply(wanted) == Outcome(changes=4)
    assert {what for _, what in world.steps()} == {"adopted"}
    assert {name: node for name, (_, _, node) in world.snapshot().items()} == {
        name: node for name, (_, _, node) in before.items()
    }
    records = [(entry.found, entry.stamp) for entry in second.entries(Origin.ASSIGNED)]
    assert records == [(entry.found, entry.stamp) for entry in first.entries(Origin.ASSIGNED)]
    world.reset()
    assert (ground / "found").read_bytes() == b"theirs"
    assert sorted(path.name for path in ground.iterdir()) == ["found", "state"]


def test_a_lost_ledger_takes_what_bears_no_mark_as_found(ground: Path) -> None:
    (ground / "state").mkdir(mode=0o711)
    first, second = Memory(), Memory()
    world = World(ground, lambda: first)
    wanted = world.list(file("a"), directory("b"))
    world.apply(wanted)
    for resource in wanted:
        places.unmark(resource.spec.path, uid=0)
    world.reopen = lambda: second
    world.apply(wanted)
    assert [entry.found for entry in second.entries(Origin.ASSIGNED)] == [True, True]
    world.reset()
    assert (ground / "a").read_bytes() == b"ours\n"
    assert (ground / "b").is_dir()


def test_another_folders_mark_is_foreign(world: World) -> None:
    (world.ground / "a").write_bytes(b"ours\n")
    theirs = marks.encode(Mark("/srv/other", f"file:{world.ground}/a", found=False, stamp="s"))
    put_mark(world.ground / "a", theirs)
    wanted = world.list(file("a"))
    world.apply(wanted)
    entry = world.reopen().entry(Origin.ASSIGNED, wanted[0].id)
    assert entry is not None
    assert entry.found
    world.reset()
    assert (world.ground / "a").read_bytes() == b"ours\n"
    assert mark_of(world.ground / "a") == theirs


# Dying on the way. Each test dies once at every step there is, and goes on with a new agent.


def crash_at_every_step(prepare: Callable[[], None], run: Callable[[], object], world: World) -> Iterator[str]:
    """Dies at the first step, then at the second, …; yields the step of each death, until a run has none."""
    at = 0
    while True:
        prepare()
        world.fuse = Fuse(at)
        try:
            run()
        except Crash as crash:
            world.fuse = Fuse()
            yield str(crash)
            at += 1
        else:
            assert at > 0
            world.fuse = Fuse()
            return


FOUND = b"theirs, with mode and owner"


def found_things(world: World) -> None:
    """What is on the machine before the agent comes."""
    path = world.ground / "found"
    path.write_bytes(FOUND)
    path.chmod(0o4711)
    (world.ground / "folder").mkdir(mode=0o700, exist_ok=True)


def found_things_are_back(world: World) -> None:
    assert facts(world.ground / "found") == (FOUND, 0o4711, 0, 0)
    assert stat.S_IMODE((world.ground / "folder").stat().st_mode) == 0o700
    assert mark_of(world.ground / "found") is None
    assert mark_of(world.ground / "folder") is None
    assert sorted(path.name for path in world.ground.iterdir()) == ["folder", "found", "state"]
    assert list((world.state / "secrets").iterdir()) == []
    assert world.held() == []


def everything(world: World, content: str = "ours") -> tuple[Resource, ...]:
    return world.list(
        directory("folder"),
        file("found", content),
        directory("made"),
        secret("s"),
        file("made/1", "${secret.s}", template=True),
    )


def test_dying_while_making_loses_nothing_and_makes_nothing_twice(world: World) -> None:
    wanted = everything(world)
    place = world.state / "secrets" / "root" / "s"
    deaths = []
    for death in crash_at_every_step(lambda: found_things(world), lambda: world.apply(wanted), world):
        deaths.append(death)
        made = place.read_bytes() if place.exists() else None
        outcome = world.apply(wanted)
        assert outcome.failed == {}, death
        assert made in (None, place.read_bytes()), death
        assert (world.ground / "made" / "1").read_bytes() == place.read_bytes()
        assert world.apply(wanted) == Outcome(), death
        assert all(
            marks.decode(mark_of(one.spec.path) or b"")
            == Mark(str(world.state), one.id, found=one in wanted[:2], stamp=world.machine.stamp(one, {}))
            for one in wanted[:3]
        ), death
        assert world.reset() == {}, death
        found_things_are_back(world)
    world.reset()
    assert {"before preserve", "after preserve", "before intend", "after intend", "after apply"} <= set(deaths)


def test_dying_while_making_and_then_giving_up_gives_everything_back(world: World) -> None:
    wanted = everything(world)
    for death in crash_at_every_step(lambda: found_things(world), lambda: world.apply(wanted), world):
        assert world.reset() == {}, death
        assert [step.detail for step in world.told if step.what == "left"] == [], death
        if (world.state / "secrets").exists():
            found_things_are_back(world)
    world.reset()


def test_dying_while_changing_still_gives_the_first_content_back(world: World) -> None:
    def prepare() -> None:
        found_things(world)
        world.apply(everything(world, "ours"))

    newer = everything(world, "ours, newer")
    for death in crash_at_every_step(prepare, lambda: world.apply(newer), world):
        assert world.apply(everything(world, "ours, newest")).failed == {}, death
        assert world.reset() == {}, death
        found_things_are_back(world)
    world.reset()


def test_dying_while_removing_gives_everything_back(world: World) -> None:
    def prepare() -> None:
        found_things(world)
        world.apply(everything(world))

    deaths = []
    for death in crash_at_every_step(prepare, world.reset, world):
        deaths.append(death)
        assert world.reset() == {}, death
        found_things_are_back(world)
    assert {"before leave", "before remove", "after remove", "after forget"} <= set(deaths)


def test_dying_while_removing_and_wanting_it_again_still_gives_it_back(world: World) -> None:
    def prepare() -> None:
        found_things(world)
        world.apply(everything(world))

    for death in crash_at_every_step(prepare, lambda: world.apply(()), world):
        assert world.apply(everything(world)).failed == {}, death
        assert world.apply(everything(world)) == Outcome(), death
        assert world.reset() == {}, death
        found_things_are_back(world)
    world.apply(everything(world))
    world.reset()
