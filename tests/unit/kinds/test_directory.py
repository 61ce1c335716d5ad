from __future__ import annotations

import pwd
import stat
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.kinds import marks
from agent.kinds.directory import Directory
from agent.kinds.kind import Held, Mark, Standing, Verb
from tests.marked import mark_of, put_mark

NOBODY = pwd.getpwnam("nobody")
KIND = Directory()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_made_marked_and_then_kept(bench, ground: Path) -> None:
    resource = bench.resource("directory", ground / "a", mode="0750", owner="root:nogroup")
    assert bench.make(KIND, resource).verb is Verb.CREATE
    status = (ground / "a").stat()
    assert (mode(ground / "a"), status.st_uid) == (0o750, 0)
    mark = marks.decode(mark_of(ground / "a") or b"")
    assert mark == Mark(str(bench.machine.state), resource.id, found=False, stamp=resource.digest)
    assert bench.plan(KIND, resource).verb is Verb.KEEP


def test_drift_is_said_and_mended(bench, ground: Path) -> None:
    resource = bench.resource("directory", ground / "a", owner="nobody")
    bench.make(KIND, resource)
    (ground / "a").chmod(0o700)
    plan = bench.make(KIND, resource)
    assert (plan.verb, plan.reason) == (Verb.CHANGE, "mode 0700, not 0755")
    assert (mode(ground / "a"), (ground / "a").stat().st_uid) == (0o755, NOBODY.pw_uid)


def test_a_missing_parent_is_never_made(bench, ground: Path) -> None:
    resource = bench.resource("directory", ground / "a" / "b")
    with pytest.raises(Unavailable, match=f"declare directory:{ground}/a before it"):
        KIND.check(resource.spec, bench.machine, [])
    with pytest.raises(Unavailable):
        bench.make(KIND, resource)
    assert not (ground / "a").exists()


def test_something_else_in_its_place_is_refused(bench, ground: Path) -> None:
    (ground / "a").symlink_to(ground)
    with pytest.raises(Refused, match="is a symbolic link, not a directory"):
        bench.plan(KIND, bench.resource("directory", ground / "a"))


def test_a_found_one_stays_and_gets_its_mode_and_owner_back(bench, ground: Path) -> None:
    (ground / "a").mkdir(mode=0o700)
    (ground / "a" / "theirs").write_bytes(b"")
    resource = bench.resource("directory", ground / "a", owner="nobody")
    assert bench.make(KIND, resource).verb is Verb.CHANGE
    assert bench.remove(KIND, resource, data=True).left == ""
    status = (ground / "a").stat()
    assert (mode(ground / "a"), status.st_uid, status.st_gid) == (0o700, 0, 0)
    assert (ground / "a" / "theirs").exists()
    assert mark_of(ground / "a") is None
    assert list((bench.machine.state / "blobs").iterdir()) == []


def test_another_agents_mark_is_given_back_too(bench, ground: Path) -> None:
    (ground / "a").mkdir()
    theirs = marks.encode(Mark("/srv/other", f"directory:{ground}/a", found=False, stamp="s"))
    put_mark(ground / "a", theirs)
    resource = bench.resource("directory", ground / "a")
    assert bench.make(KIND, resource).verb is Verb.ADOPT
    assert bench.held[resource.id].found
    bench.remove(KIND, resource)
    assert mark_of(ground / "a") == theirs


def test_a_made_one_goes_when_it_is_empty(bench, ground: Path) -> None:
    resource = bench.resource("directory", ground / "a")
    bench.make(KIND, resource)
    assert bench.remove(KIND, resource).left == ""
    assert not (ground / "a").exists()


def test_a_made_one_with_others_things_is_left_named_and_ours_no_more(bench, ground: Path) -> None:
    resource = bench.resource("directory", ground / "a")
    bench.make(KIND, resource)
    (ground / "a" / "theirs").write_bytes(b"")
    left = bench.remove(KIND, resource, data=True).left
    assert (
        left == f"{ground}/a holds what the agent didn't put there and was left; take it away with `rm -r {ground}/a`."
    )
    assert (ground / "a" / "theirs").exists()
    assert bench.plan(KIND, resource).verb is Verb.ADOPT
    wanted = bench.wanted(resource)
    assert KIND.standing(KIND.observe(wanted, bench.machine)) is Standing.FOREIGN


def test_data_is_kept_by_a_prune_and_still_ours_until_it_is_removed_as_data(bench, ground: Path) -> None:
    resource = bench.resource("directory", ground / "a", data=True)
    bench.make(KIND, resource)
    (ground / "a" / "base").mkdir()
    (ground / "a" / "base" / "1").write_bytes(b"rows")
    assert bench.remove(KIND, resource).left == (
        f"{ground}/a holds data and was kept; take it away with `rm -r {ground}/a`."
    )
    assert (ground / "a" / "base" / "1").read_bytes() == b"rows"
    assert bench.make(KIND, resource).verb is Verb.ADOPT
    assert not bench.held[resource.id].found
    assert bench.remove(KIND, resource, data=True).left == ""
    assert not (ground / "a").exists()


def test_found_data_stays_even_when_data_is_removed(bench, ground: Path) -> None:
    (ground / "a").mkdir()
    (ground / "a" / "theirs").write_bytes(b"rows")
    resource = bench.resource("directory", ground / "a", data=True)
    bench.make(KIND, resource)
    bench.remove(KIND, resource, data=True)
    assert (ground / "a" / "theirs").read_bytes() == b"rows"


def test_data_that_was_only_intended_is_not_taken_for_ours(bench, ground: Path) -> None:
    (ground / "a").mkdir()
    (ground / "a" / "theirs").write_bytes(b"rows")
    resource = bench.resource("directory", ground / "a", data=True)
    bench.held[resource.id] = Held(found=False, stamp="")
    assert "was kept" in bench.remove(KIND, resource, data=True).left
    assert (ground / "a" / "theirs").read_bytes() == b"rows"


def test_what_is_gone_or_became_something_else_can_be_removed(bench, ground: Path) -> None:
    resource = bench.resource("directory", ground / "a")
    bench.make(KIND, resource)
    (ground / "a").rmdir()
    held = bench.held[resource.id]
    assert KIND.remove(resource, held, bench.machine, data=True).left == ""
    (ground / "a").write_bytes(b"")
    assert KIND.remove(resource, held, bench.machine, data=True).left == (
        f"{ground}/a is a file now, which the agent didn't put there; it was left."
    )


def test_a_lost_ledger_remembers_by_the_mark(bench, ground: Path) -> None:
    (ground / "found").mkdir(mode=0o700)
    found = bench.resource("directory", ground / "found")
    made = bench.resource("directory", ground / "made")
    for resource in (found, made):
        bench.make(KIND, resource)
    bench.forget()
    for resource in (found, made):
        assert bench.make(KIND, resource).verb is Verb.ADOPT
        bench.remove(KIND, resource)
    assert mode(ground / "found") == 0o700
    assert not (ground / "made").exists()


def test_one_that_a_crash_left_unmarked_gets_its_mark(bench, ground: Path) -> None:
    (ground / "a").mkdir(mode=0o755)
    resource = bench.resource("directory", ground / "a")
    bench.held[resource.id] = Held(found=False, stamp="")
    assert bench.make(KIND, resource).verb is Verb.ADOPT
    assert marks.standing(mark_of(ground / "a"), resource.id, bench.machine.state) is Standing.MADE
