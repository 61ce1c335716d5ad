from __future__ import annotations

import base64
import os
import pwd
import re
import stat
from pathlib import Path

import pytest

from agent.envelope import SigningKey, seal
from agent.errors import Refused, Unavailable
from agent.kinds.kind import Held, Standing, Verb
from agent.kinds.secret import Secret
from agent.node.identity import Identity
from agent.resources import Resource

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


# What the mesh sent.

VALUE = "pass wörd\n$%\\\"'`${x}\n"


def sealed(bench, value: str | bytes = VALUE, *, name: str = "a", key: SigningKey | None = None, **spec) -> Resource:
    """A secret as the mesh sends it to this node, or to the one that has this key."""
    key = key or Identity(bench.machine.state).signing_key()
    box = seal(key.public, value if isinstance(value, bytes) else value.encode())
    return bench.resource("secret", name, sealed=base64.b64encode(box).decode("ascii"), **spec)


def test_what_the_mesh_sent_is_its_owners_only(bench) -> None:
    resource = sealed(bench, owner="nobody")
    assert bench.make(KIND, resource).verb is Verb.CREATE
    status = place(bench, "nobody", "a.mesh").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o600, NOBODY.pw_uid, NOBODY.pw_gid)
    assert place(bench, "nobody", "a.mesh").read_text() == VALUE
    assert KIND.value(resource.spec, bench.machine) == VALUE
    assert bench.plan(KIND, resource).verb is Verb.KEEP


def test_the_same_value_in_another_box_is_kept(bench) -> None:
    bench.make(KIND, sealed(bench))
    assert bench.plan(KIND, sealed(bench)).verb is Verb.KEEP


def test_a_new_value_takes_the_place_of_the_last(bench) -> None:
    bench.make(KIND, sealed(bench))
    plan = bench.make(KIND, sealed(bench, "other"))
    assert (plan.verb, plan.reason) == (Verb.CHANGE, "the mesh has changed it")
    assert place(bench, name="a.mesh").read_text() == "other"


def test_a_lost_or_changed_one_is_put_right(bench) -> None:
    resource = sealed(bench)
    bench.make(KIND, resource)
    path = place(bench, name="a.mesh")
    path.unlink()
    assert bench.make(KIND, resource).verb is Verb.CREATE
    path.write_text("changed")
    plan = bench.make(KIND, resource)
    assert (plan.verb, plan.reason) == (Verb.CHANGE, "other content")
    path.chmod(0o644)
    assert bench.make(KIND, resource).reason == "mode 0644, not 0600"
    assert (path.read_text(), bench.plan(KIND, resource).verb) == (VALUE, Verb.KEEP)


def test_a_lost_ledger_takes_what_the_mesh_sent(bench) -> None:
    resource = sealed(bench)
    bench.make(KIND, resource)
    bench.forget()
    assert bench.make(KIND, resource).verb is Verb.ADOPT
    bench.forget()
    assert bench.make(KIND, sealed(bench, "other")).reason == "the mesh has changed it"


def test_one_that_is_sealed_for_another_key_is_a_failure_that_says_what_to_run(bench) -> None:
    mine = sealed(bench)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"another key.*`agent control token create NAME --replace`"):
            bench.make(KIND, sealed(bench, "other", key=SigningKey(b"o" * 32)))
        bench.make(KIND, mine)
    assert place(bench, name="a.mesh").read_text() == VALUE


def test_without_a_key_of_its_own_nothing_is_opened(bench) -> None:
    with pytest.raises(Unavailable, match="another key"):
        bench.make(KIND, sealed(bench, key=SigningKey(b"o" * 32)))


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\0b"])
def test_a_value_that_no_variable_could_hold_is_not_written(bench, value: bytes) -> None:
    with pytest.raises(Unavailable, match="what the mesh sealed"):
        bench.make(KIND, sealed(bench, value))
    assert not place(bench, name="a.mesh").exists()


@pytest.mark.parametrize("content", [b"", b"\xff", b"pass\0word", b"x" * 65537])
def test_what_the_mesh_cannot_have_sent_is_a_failure_without_the_value(bench, content: bytes) -> None:
    resource = sealed(bench)
    bench.make(KIND, resource)
    place(bench, name="a.mesh").write_bytes(content)
    with pytest.raises(Unavailable, match="which the mesh never sent") as failure:
        KIND.value(resource.spec, bench.machine)
    assert "pass" not in str(failure.value)
    bench.make(KIND, resource)
    assert KIND.value(resource.spec, bench.machine) == VALUE


def test_what_the_mesh_sent_is_removed_when_it_is_declared_no_more(bench) -> None:
    resource = sealed(bench)
    bench.make(KIND, resource)
    assert bench.remove(KIND, resource).left == ""
    assert not place(bench).parent.exists()


def test_neither_takes_the_others_place(bench) -> None:
    own = bench.resource("secret", "a")
    bench.make(KIND, own)
    made = place(bench).read_text()
    bench.make(KIND, sealed(bench))
    assert (place(bench).read_text(), place(bench, name="a.mesh").read_text()) == (made, VALUE)
    # The list declares its own again.
    assert bench.make(KIND, own).reason == "the mesh's is wanted no more"
    assert KIND.value(own.spec, bench.machine) == made
    assert not place(bench, name="a.mesh").exists()
    assert bench.plan(KIND, own).verb is Verb.KEEP


def test_one_of_ones_own_after_the_meshs_is_made_and_not_taken_for_lost(bench) -> None:
    bench.make(KIND, sealed(bench))
    own = bench.resource("secret", "a")
    assert bench.make(KIND, own).verb is Verb.CREATE
    assert re.fullmatch("[0-9a-f]{64}", KIND.value(own.spec, bench.machine) or "")
    assert not place(bench, name="a.mesh").exists()
    place(bench).unlink()
    with pytest.raises(Unavailable, match="is lost"):
        bench.make(KIND, own)


def test_what_the_mesh_sent_is_shown_nowhere(bench, caplog) -> None:
    caplog.set_level("DEBUG")
    resource = sealed(bench, "visible")
    shown = repr(bench.make(KIND, resource)) + repr(bench.wanted(resource, {"secret.a": "visible"}))
    shown += repr(KIND.observe(bench.wanted(resource), bench.machine)) + repr(resource) + caplog.text
    assert "visible" not in shown
