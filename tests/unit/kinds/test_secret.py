from __future__ import annotations

import os
import pwd
import re
import stat
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.kinds.kind import Held, Standing, Verb
from agent.kinds.secret import Secret

NOBODY = pwd.getpwnam("nobody")
KIND = Secret()


def place(bench, owner: str = "root", name: str = "a") -> Path:
    return bench.machine.state / "secrets" / owner / name


def test_it_is_made_once_for_its_owner_only(bench) -> None:
    resource = bench.resource("secret", "a", owner="nobody", bytes=24)
    assert bench.make(KIND, resource).verb is Verb.CREATE
    path = place(bench, "nobody")
    for one, mode in ((path, 0o600), (path.parent, 0o700)):
        status = one.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (mode, NOBODY.pw_uid, NOBODY.pw_gid)
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o711
    value = KIND.value(resource.spec, bench.machine)
    assert re.fullmatch(r"[0-9a-f]{48}", value or "")
    assert path.read_text() == value
    assert bench.plan(KIND, resource).verb is Verb.KEEP
    assert KIND.value(resource.spec, bench.machine) == value


def test_two_are_different(bench) -> None:
    for name in ("a", "b"):
        bench.make(KIND, bench.resource("secret", name))
    assert place(bench, name="a").read_bytes() != place(bench, name="b").read_bytes()


def test_it_has_no_value_before_it_is_made(bench) -> None:
    assert KIND.value(bench.resource("secret", "a").spec, bench.machine) is None


def test_another_declared_length_makes_no_other(bench) -> None:
    bench.make(KIND, bench.resource("secret", "a", bytes=16))
    before = place(bench).read_bytes()
    assert bench.plan(KIND, bench.resource("secret", "a", bytes=64)).verb is Verb.KEEP
    assert place(bench).read_bytes() == before


def test_a_lost_one_is_a_failure_in_words_and_made_again_only_by_command(bench) -> None:
    resource = bench.resource("secret", "a")
    bench.make(KIND, resource)
    place(bench).unlink()
    with pytest.raises(Unavailable, match=r"is lost: .*`agent up --remake secret:a`"):
        bench.make(KIND, resource)
    assert not place(bench).exists()
    del bench.held[resource.id]
    assert bench.make(KIND, resource).verb is Verb.CREATE


def test_one_that_was_only_intended_is_made(bench) -> None:
    resource = bench.resource("secret", "a")
    bench.held[resource.id] = Held(found=False, stamp="")
    assert bench.make(KIND, resource).verb is Verb.CREATE


def test_one_of_another_owner_is_named(bench) -> None:
    bench.make(KIND, bench.resource("secret", "a"))
    with pytest.raises(Unavailable, match=f"made for another owner, at {place(bench)}; move it to"):
        bench.plan(KIND, bench.resource("secret", "a", owner="nobody"))


def test_a_lost_ledger_takes_what_is_in_the_agents_own_folder(bench) -> None:
    resource = bench.resource("secret", "a")
    bench.make(KIND, resource)
    before = place(bench).read_bytes()
    bench.forget()
    assert bench.make(KIND, resource).verb is Verb.ADOPT
    assert not bench.held[resource.id].found
    assert place(bench).read_bytes() == before


def test_mode_owner_and_folder_are_mended_without_making_another(bench) -> None:
    resource = bench.resource("secret", "a", owner="nobody")
    bench.make(KIND, resource)
    path = place(bench, "nobody")
    before = path.read_bytes()
    path.chmod(0o644)
    assert bench.make(KIND, resource).reason == "mode 0644, not 0600"
    path.parent.chmod(0o755)
    assert bench.make(KIND, resource).reason == "of its folder: mode 0755, not 0700"
    os.chown(path.parent, 12345, 12345)
    assert bench.make(KIND, resource).verb is Verb.CHANGE
    assert path.parent.stat().st_uid == NOBODY.pw_uid
    assert (bench.plan(KIND, resource).verb, path.read_bytes()) == (Verb.KEEP, before)


def test_two_groups_share_a_folder_in_peace(bench) -> None:
    resources = [bench.resource("secret", "a"), bench.resource("secret", "b", owner="root:nogroup")]
    for resource in resources:
        bench.make(KIND, resource)
    assert [bench.plan(KIND, resource).verb for resource in resources] == [Verb.KEEP, Verb.KEEP]


@pytest.mark.parametrize("content", [b"", b"password\n", b"ABCD", b"\xff", b"abc"])
def test_a_value_that_the_agent_did_not_write_is_a_failure_without_the_value(bench, content: bytes) -> None:
    resource = bench.resource("secret", "a")
    bench.make(KIND, resource)
    place(bench).write_bytes(content)
    with pytest.raises(Unavailable, match="doesn't hold what the agent wrote there") as failure:
        KIND.value(resource.spec, bench.machine)
    assert "password" not in str(failure.value)


def test_it_is_kept_when_dropped_and_goes_with_the_rest(bench) -> None:
    resource = bench.resource("secret", "a")
    bench.make(KIND, resource)
    held = bench.held[resource.id]
    assert bench.remove(KIND, resource).left == f"{place(bench)} was kept, because data may need it."
    assert place(bench).exists()
    for _ in range(2):
        assert KIND.remove(resource, held, bench.machine, data=True).left == ""
    assert not place(bench).parent.exists()


def test_an_unknown_owner_is_refused_unless_a_package_may_bring_it(bench) -> None:
    spec = bench.resource("secret", "a", owner="nobody-knows").spec
    with pytest.raises(Refused, match="nobody-knows"):
        KIND.check(spec, bench.machine, [])
    KIND.check(spec, bench.machine, [bench.resource("package", "brings-it")])


def test_its_value_is_shown_nowhere(bench, caplog) -> None:
    caplog.set_level("DEBUG")
    resource = bench.resource("secret", "a")
    plan = bench.make(KIND, resource)
    wanted = bench.wanted(resource, {"secret.a": KIND.value(resource.spec, bench.machine) or ""})
    observed = KIND.observe(wanted, bench.machine)
    shown = repr(plan) + repr(wanted) + repr(observed) + caplog.text
    assert place(bench).read_text() not in shown
    assert KIND.standing(observed) is Standing.MADE
