from __future__ import annotations

import os
import pwd
import stat
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.kinds import marks, places
from agent.kinds.file import File, Observed
from agent.kinds.kind import Held, Mark, Standing, Verb
from tests.marked import mark_of, put_mark

NOBODY = pwd.getpwnam("nobody")
KIND = File()


def facts(path: Path) -> tuple[bytes, int, int, int]:
    status = path.stat()
    return path.read_bytes(), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid


def test_it_is_made_marked_and_then_kept(bench, ground: Path) -> None:
    resource = bench.resource("file", ground / "a", content="hello\n", mode="0640", owner="nobody")
    plan = bench.make(KIND, resource)
    assert (plan.verb, plan.reason) == (Verb.CREATE, "not there yet")
    assert facts(ground / "a") == (b"hello\n", 0o640, NOBODY.pw_uid, NOBODY.pw_gid)
    mark = marks.decode(mark_of(ground / "a") or b"")
    assert mark == Mark(str(bench.machine.state), resource.id, found=False, stamp=resource.digest)
    assert bench.plan(KIND, resource).verb is Verb.KEEP


def test_it_is_kept_where_no_mark_can_be_held(bench, ground: Path) -> None:
    resource = bench.resource("file", ground / "a", content="hello\n")
    bench.make(KIND, resource)
    places.unmark(ground / "a", uid=0)
    assert bench.plan(KIND, resource).verb is Verb.KEEP


def test_changed_content_is_written_and_not_shown(bench, ground: Path) -> None:
    resource = bench.resource("file", ground / "a", content="key = ${secret.a}\n", template=True)
    bench.make(KIND, resource, {"secret.a": "first-value"})
    assert (ground / "a").read_bytes() == b"key = first-value\n"
    (ground / "a").chmod(0o600)
    plan = bench.make(KIND, resource, {"secret.a": "second-value"})
    assert plan.verb is Verb.CHANGE
    assert plan.reason == "other content, and mode 0600, not 0644"
    assert (ground / "a").read_bytes() == b"key = second-value\n"
    assert "value" not in repr(plan)
    assert b"second-value" not in (mark_of(ground / "a") or b"")


def test_only_a_template_is_filled(bench, ground: Path) -> None:
    plain = bench.resource("file", ground / "a", content="${secret.a} $${x}")
    bench.make(KIND, plain)
    assert (ground / "a").read_bytes() == b"${secret.a} $${x}"
    template = bench.resource("file", ground / "b", content="${secret.a} $${x} ${state}", template=True)
    bench.make(KIND, template, {"secret.a": "${secret.b}"})
    assert (ground / "b").read_text() == f"${{secret.b}} ${{x}} {bench.machine.state}"


def test_mode_and_owner_are_mended_without_writing(bench, ground: Path) -> None:
    resource = bench.resource("file", ground / "a", content="hello\n")
    bench.make(KIND, resource)
    inode = (ground / "a").stat().st_ino
    (ground / "a").chmod(0o666)
    os.chown(ground / "a", NOBODY.pw_uid, 0)
    plan = bench.make(KIND, resource)
    assert plan.reason == f"mode 0666, not 0644 and owner {NOBODY.pw_uid}:0, not 0:0"
    assert facts(ground / "a") == (b"hello\n", 0o644, 0, 0)
    assert (ground / "a").stat().st_ino == inode


def test_a_removed_one_is_made_again(bench, ground: Path) -> None:
    resource = bench.resource("file", ground / "a", content="hello\n")
    bench.make(KIND, resource)
    (ground / "a").unlink()
    assert bench.make(KIND, resource).verb is Verb.CREATE
    assert (ground / "a").read_bytes() == b"hello\n"


def test_planning_looks_at_nothing(bench, ground: Path) -> None:
    resource = bench.resource("file", ground / "nowhere" / "a", content="hello\n", owner="nobody-knows")
    thing = places.Thing(0o644, 7, 7, None, "0" * 64)
    observed = Observed(thing, (7, 7), resource.id, bench.machine.state)
    assert KIND.plan(bench.wanted(resource), observed, None).reason == "other content"
    same = replace(thing, sha256="5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03")
    observed = replace(observed, thing=same)
    assert KIND.plan(bench.wanted(resource), observed, None).verb is Verb.ADOPT
    assert KIND.plan(bench.wanted(resource), observed, Held(found=False, stamp="s")).verb is Verb.KEEP


def test_a_big_blob_is_streamed_in_and_out(bench, ground: Path) -> None:
    bench.blobs["big"] = os.urandom(1024 * 1024) * 48
    (ground / "a").write_bytes(bench.blobs["big"][::-1])
    resource = bench.resource("file", ground / "a", blob="big")
    tracemalloc.start()
    try:
        assert bench.make(KIND, resource).verb is Verb.CHANGE
        assert bench.plan(KIND, resource).verb is Verb.KEEP
        bench.remove(KIND, resource)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (ground / "a").read_bytes() == bench.blobs["big"][::-1]
    assert peak < 8 * 1024 * 1024


def test_a_blob_that_breaks_off_leaves_the_old_file(bench, ground: Path) -> None:
    def broken(name: str):
        yield b"half"
        raise Refused("The blob is damaged; copy the file here again.")

    (ground / "a").write_bytes(b"old")
    bench.blobs["big"] = b"half and the rest"
    resource = bench.resource("file", ground / "a", blob="big")
    bench.machine = replace(bench.machine, read_blob=broken)
    with pytest.raises(Refused, match="damaged"):
        bench.make(KIND, resource)
    assert (ground / "a").read_bytes() == b"old"
    assert sorted(path.name for path in ground.iterdir()) == ["a", "state"]


@pytest.mark.parametrize("what", ["link", "folder", "pipe"])
def test_something_else_in_its_place_is_refused(bench, ground: Path, what: str) -> None:
    if what == "link":
        (ground / "a").symlink_to("/etc/passwd")
    elif what == "folder":
        (ground / "a").mkdir()
    else:
        os.mkfifo(ground / "a")
    resource = bench.resource("file", ground / "a", content="")
    with pytest.raises(Refused, match="not a file; move it away or choose another path"):
        bench.plan(KIND, resource)
    with pytest.raises(Refused, match="not a file"):
        KIND.check(resource.spec, bench.machine, [])


def test_a_directory_of_somebody_elses_is_refused(bench, ground: Path) -> None:
    (ground / "theirs").mkdir()
    os.chown(ground / "theirs", NOBODY.pw_uid, NOBODY.pw_gid)
    with pytest.raises(Refused, match="could replace what is put there"):
        bench.make(KIND, bench.resource("file", ground / "theirs" / "a", content=""))
    bench.make(KIND, bench.resource("file", ground / "theirs" / "b", content="", owner="nobody"))


def test_a_found_one_is_given_back_byte_for_byte(bench, ground: Path) -> None:
    before = bytes(range(256)) * 9000 + b"\nlast line without an end"
    (ground / "a").write_bytes(before)
    os.chown(ground / "a", NOBODY.pw_uid, NOBODY.pw_gid)
    (ground / "a").chmod(0o4750)
    resource = bench.resource("file", ground / "a", content="ours")
    assert bench.make(KIND, resource).verb is Verb.CHANGE
    later = bench.resource("file", ground / "a", content="ours, later")
    bench.make(KIND, later)
    assert facts(ground / "a") == (b"ours, later", 0o644, 0, 0)
    assert bench.remove(KIND, later).left == ""
    assert facts(ground / "a") == (before, 0o4750, NOBODY.pw_uid, NOBODY.pw_gid)
    assert mark_of(ground / "a") is None
    assert list((bench.machine.state / "blobs").iterdir()) == []


def test_a_found_one_that_somebody_removed_is_given_back_too(bench, ground: Path) -> None:
    (ground / "a").write_bytes(b"theirs")
    resource = bench.resource("file", ground / "a", content="ours")
    bench.make(KIND, resource)
    (ground / "a").unlink()
    bench.remove(KIND, resource)
    assert (ground / "a").read_bytes() == b"theirs"


def test_a_found_one_stays_remembered_while_it_cannot_be_given_back(bench, ground: Path) -> None:
    (ground / "folder").mkdir()
    (ground / "folder" / "a").write_bytes(b"theirs")
    resource = bench.resource("file", ground / "folder" / "a", content="ours")
    bench.make(KIND, resource)
    (ground / "folder" / "a").unlink()
    (ground / "folder").rmdir()
    with pytest.raises(Unavailable, match=f"{ground}/folder is not there"):
        bench.remove(KIND, resource)
    (ground / "folder").mkdir()
    bench.remove(KIND, resource)
    assert (ground / "folder" / "a").read_bytes() == b"theirs"


def test_a_found_one_whose_content_is_forgotten_is_left_and_named(bench, ground: Path) -> None:
    (ground / "a").write_bytes(b"theirs")
    resource = bench.resource("file", ground / "a", content="ours")
    bench.make(KIND, resource)
    for memory in (bench.machine.state / "blobs").iterdir():
        memory.unlink()
    assert "no longer known, so it was left as it is" in bench.remove(KIND, resource).left
    assert (ground / "a").read_bytes() == b"ours"
    assert mark_of(ground / "a") is None


def test_a_made_one_is_removed(bench, ground: Path) -> None:
    resource = bench.resource("file", ground / "a", content="")
    bench.make(KIND, resource)
    held = bench.held[resource.id]
    assert bench.remove(KIND, resource).left == ""
    assert not (ground / "a").exists()
    assert KIND.remove(resource, held, bench.machine, data=True).left == ""


def test_what_became_something_else_is_left_and_named(bench, ground: Path) -> None:
    resource = bench.resource("file", ground / "a", content="")
    bench.make(KIND, resource)
    (ground / "a").unlink()
    (ground / "a").symlink_to("/etc/passwd")
    assert bench.remove(KIND, resource).left == (
        f"{ground}/a is a symbolic link now, which the agent didn't put there; it was left."
    )


def test_what_was_only_intended_is_removed_if_it_bears_our_mark(bench, ground: Path) -> None:
    resource = bench.resource("file", ground / "a", content="")
    intended = Held(found=False, stamp="")
    (ground / "a").write_bytes(b"theirs")
    assert "may not be the agent's" in KIND.remove(resource, intended, bench.machine, data=True).left
    assert (ground / "a").read_bytes() == b"theirs"
    put_mark(ground / "a", marks.encode(bench.machine.mark(bench.wanted(resource), found=False)))
    assert KIND.remove(resource, intended, bench.machine, data=True).left == ""
    assert not (ground / "a").exists()


def test_a_lost_ledger_remembers_by_the_mark(bench, ground: Path) -> None:
    (ground / "found").write_bytes(b"theirs")
    found = bench.resource("file", ground / "found", content="ours")
    made = bench.resource("file", ground / "made", content="ours")
    for resource in (found, made):
        bench.make(KIND, resource)
    bench.forget()
    newer = bench.resource("file", ground / "found", content="ours, newer")
    assert bench.make(KIND, newer).verb is Verb.CHANGE
    assert bench.make(KIND, made).verb is Verb.ADOPT
    bench.remove(KIND, newer)
    bench.remove(KIND, made)
    assert (ground / "found").read_bytes() == b"theirs"
    assert not (ground / "made").exists()


def test_a_lost_ledger_without_marks_keeps_what_was_there_before(bench, ground: Path) -> None:
    (ground / "a").write_bytes(b"theirs")
    resource = bench.resource("file", ground / "a", content="ours")
    bench.make(KIND, resource)
    places.unmark(ground / "a", uid=0)
    bench.forget()
    assert bench.make(KIND, resource).verb is Verb.ADOPT
    bench.remove(KIND, resource)
    assert (ground / "a").read_bytes() == b"theirs"


def test_a_crash_before_the_intent_keeps_what_is_there_now(bench, ground: Path) -> None:
    (ground / "a").write_bytes(b"theirs")
    resource = bench.resource("file", ground / "a", content="ours")
    wanted = bench.wanted(resource)
    KIND.preserve(wanted, KIND.observe(wanted, bench.machine), bench.machine)
    (ground / "a").write_bytes(b"theirs, edited")
    bench.make(KIND, resource)
    bench.remove(KIND, resource)
    assert (ground / "a").read_bytes() == b"theirs, edited"


def test_another_folders_mark_is_foreign_and_given_back(bench, ground: Path) -> None:
    (ground / "a").write_bytes(b"theirs")
    theirs = marks.encode(Mark("/srv/other", f"file:{ground}/a", found=False, stamp="s"))
    put_mark(ground / "a", theirs)
    resource = bench.resource("file", ground / "a", content="ours")
    wanted = bench.wanted(resource)
    assert KIND.standing(KIND.observe(wanted, bench.machine)) is Standing.FOREIGN
    bench.make(KIND, resource)
    bench.remove(KIND, resource)
    assert (ground / "a").read_bytes() == b"theirs"
    assert mark_of(ground / "a") == theirs


@pytest.mark.parametrize(
    ("there", "shown"),
    [(b"old", "-old\n\\ No newline at end of file\n+new\n"), (b"\xff", ""), (b"o" * (256 * 1024 + 1), "")],
)
def test_a_difference_is_shown_of_texts_of_a_readable_size(bench, ground: Path, there: bytes, shown: str) -> None:
    (ground / "a").write_bytes(there)
    wanted = bench.wanted(bench.resource("file", ground / "a", content="new\n"))
    assert KIND.difference(wanted, bench.machine, {}).endswith(shown)
    assert bool(KIND.difference(wanted, bench.machine, {})) == bool(shown)
