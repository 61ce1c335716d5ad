from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.kinds.package.daemons import Policy, Units
from agent.kinds.package.note import Note, read_note, write_note

REPOSITORY = Path(__file__).parents[4]
THEIRS = b"#!/bin/sh\n# the machine's own \xff\nexit 104\n"

KILLED = """
import os, signal, sys
from pathlib import Path
from agent.kinds.package.daemons import Policy
with Policy(Path(sys.argv[1])).in_force():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def absent(path: Path) -> None:
    pass


def a_file(path: Path) -> None:
    path.write_bytes(THEIRS)
    path.chmod(0o750)


def a_link(path: Path) -> None:
    target = path.with_name("the-real-policy")
    target.write_bytes(THEIRS)
    path.symlink_to(target)


def a_broken_link(path: Path) -> None:
    path.symlink_to("/no/such/policy")


def look(path: Path) -> tuple[object, ...]:
    """Everything that makes the file what it is; its very inode, too."""
    if not os.path.lexists(path):
        return ()
    status = path.lstat()
    content = path.readlink() if path.is_symlink() else path.read_bytes()
    return status.st_ino, status.st_mode, status.st_uid, status.st_mtime_ns, content


EACH = pytest.mark.parametrize("before", [absent, a_file, a_link, a_broken_link])


@EACH
def test_a_policy_says_no_and_then_all_is_as_before(ground: Path, before: Callable[[Path], None]) -> None:
    path = ground / "policy-rc.d"
    before(path)
    found, names = look(path), sorted(ground.iterdir())
    policy = Policy(path)
    assert not policy.has_leftovers()
    with policy.in_force():
        assert subprocess.run([path, "web", "start"]).returncode == 101
        assert policy.has_leftovers()
    assert look(path) == found
    assert sorted(ground.iterdir()) == names
    assert not policy.has_leftovers()


@EACH
def test_a_failure_inside_changes_nothing_of_that(ground: Path, before: Callable[[Path], None]) -> None:
    path = ground / "policy-rc.d"
    before(path)
    found = look(path)
    with pytest.raises(Unavailable), Policy(path).in_force():
        raise Unavailable("apt failed")
    assert look(path) == found


@EACH
def test_what_a_killed_agent_left_is_recovered(ground: Path, before: Callable[[Path], None]) -> None:
    path = ground / "policy-rc.d"
    before(path)
    found, names = look(path), sorted(ground.iterdir())
    for _ in range(2):  # Being killed again while recovering loses nothing either.
        killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=REPOSITORY)
        assert killed.returncode == -9
        assert Policy(path).has_leftovers()
        assert subprocess.run([path]).returncode == 101
    with Policy(path).in_force():
        assert subprocess.run([path]).returncode == 101
    assert look(path) == found
    assert sorted(ground.iterdir()) == names
    assert not Policy(path).has_leftovers()


def test_every_step_of_it_may_be_the_last(ground: Path) -> None:
    path = ground / "policy-rc.d"
    saved, upcoming = ground / "policy-rc.d.mesh-agent-saved", ground / "policy-rc.d.mesh-agent-next"
    a_file(path)
    found = look(path)

    def recover() -> None:
        assert Policy(path).has_leftovers()
        with Policy(path).in_force():
            assert subprocess.run([path]).returncode == 101
        assert look(path) == found
        assert sorted(ground.iterdir()) == [path]

    os.link(path, saved)
    recover()
    os.link(path, saved)
    upcoming.write_text("half a pol")
    recover()
    # A restoring that was cut short before its very last step.
    upcoming.write_text("half a pol")
    recover()
    # A person took ours away, who did not know that the machine's own was saved.
    path.rename(saved)
    recover()
    # An older one was saved, and the machine has got a new one since.
    saved.write_text("old")
    recover()


def test_what_others_put_there_meanwhile_stays(ground: Path) -> None:
    path = ground / "policy-rc.d"
    a_file(path)
    with Policy(path).in_force():
        path.unlink()
        path.write_text("newer")
    assert path.read_text() == "newer"
    assert sorted(ground.iterdir()) == [path]


def test_ours_being_removed_meanwhile_brings_the_machines_own_back(ground: Path) -> None:
    path = ground / "policy-rc.d"
    a_file(path)
    found = look(path)
    with Policy(path).in_force():
        path.unlink()
    assert look(path) == found


def test_units_are_masked_and_unmasked(ground: Path) -> None:
    units = Units(ground / "etc" / "systemd" / "system")
    note = units.intend(("a.service", "b.socket"), None)
    assert note == Note(("a.service", "b.socket"), (units.folder, units.folder.parent, units.folder.parent.parent))
    for _ in range(2):  # The second time is after a crash.
        units.mask(note)
        assert units.intend(("a.service", "b.socket"), note) == note
    assert str((units.folder / "a.service").readlink()) == "/dev/null"
    units.check(("a.service", "b.socket", "c.service"))
    for _ in range(2):
        units.unmask("web", note)
    assert list(ground.iterdir()) == []


def test_masks_and_units_of_the_machine_are_left_alone(ground: Path) -> None:
    units = Units(ground)
    (ground / "masked.service").symlink_to("/dev/null")
    (ground / "own.service").write_text("[Unit]\n")
    units.check(("masked.service", "new.service"))
    with pytest.raises(Unavailable, match=r"own\.service is this machine's own unit, so it can't be masked"):
        units.check(("masked.service", "own.service"))
    note = units.intend(("masked.service", "new.service"), None)
    assert note == Note(("new.service",), ())
    units.mask(note)
    (ground / "new.service").unlink()
    (ground / "new.service").write_text("put here since")
    units.unmask("web", note)
    assert {path.name for path in ground.iterdir()} == {"masked.service", "own.service", "new.service"}


def test_what_a_preset_enabled_starts_at_no_boot(ground: Path) -> None:
    units = Units(ground, find=lambda program: None)
    note = units.intend(("a.service",), None)
    units.mask(note)
    wants = ground / "multi-user.target.wants"
    wants.mkdir()
    for unit in ("a.service", "b.service"):
        (wants / unit).symlink_to(f"/usr/lib/systemd/system/{unit}")
    units.unmask("web", note)
    assert [path.relative_to(ground) for path in ground.rglob("*")] == [
        Path("multi-user.target.wants"),
        Path("multi-user.target.wants/b.service"),
    ]


def test_nothing_to_mask_makes_no_folder(ground: Path) -> None:
    units = Units(ground / "system")
    note = units.intend((), None)
    units.mask(note)
    assert note == Note()
    assert list(ground.iterdir()) == []


def test_a_note_reads_back_as_it_was_written(ground: Path) -> None:
    path = ground / "web.json"
    assert read_note(path) is None
    note = Note(("a.service",), (Path("/a b"),), ("00ff",))
    write_note(path, note)
    assert read_note(path) == note
    path.write_text("{")
    assert read_note(path) == Note()
