from __future__ import annotations

import json
import os
import signal
import stat
import sys
from dataclasses import replace

import pytest

from agent.errors import Refused, Unavailable
from agent.host import processes
from agent.kinds.kind import Held, Standing, Verb
from agent.kinds.service import Service
from agent.kinds.service.action import Action
from agent.kinds.service.detached import Observed
from agent.resources import Context, parse_resource
from tests.unit.kinds.service.workshop import Workshop, until

SLEEP = "exec sleep 1000"


def test_a_service_runs_as_declared_and_is_then_kept(workshop: Workshop) -> None:
    resource = workshop.declare(
        f'pwd; id -un; echo "$GREETING"; {SLEEP}',
        user="nobody",
        directory="/usr",
        environment={"GREETING": "hello ${secret.word}"},
    )
    late = {"secret.word": "0123abcd"}
    plan = workshop.up(resource, late)
    assert (plan.verb, plan.reason) == (Verb.CREATE, "it is not running")
    assert workshop.identity.log.read_text() == "/usr\nnobody\nhello 0123abcd\n"
    pid = workshop.main(resource)
    assert workshop.plan(resource, late).verb is Verb.KEEP
    assert workshop.up(resource, late).actions == ()
    assert workshop.main(resource) == pid
    assert workshop.kind.standing(workshop.observe(resource, late)) is Standing.MADE
    assert stat.S_IMODE(workshop.identity.record.stat().st_mode) == 0o600
    assert "0123abcd" not in workshop.identity.record.read_text()


def test_removing_ends_all_and_takes_record_and_log_along(workshop: Workshop) -> None:
    resource = workshop.declare("sleep 1000 & sleep 1000 & wait")
    workshop.up(resource)
    assert len(workshop.observe(resource).members) == 3
    workshop.down(resource)
    assert workshop.left() == []
    assert not workshop.identity.log.exists()
    assert not workshop.identity.record.exists()
    assert workshop.kind.standing(workshop.observe(resource)) is Standing.ABSENT
    workshop.down(resource)


def test_another_declaration_replaces_what_runs(workshop: Workshop) -> None:
    workshop.up(workshop.declare(SLEEP))
    first = workshop.main(workshop.declare(SLEEP))
    changed = workshop.declare(SLEEP, environment={"NEW": "1"})
    plan = workshop.up(changed)
    assert (plan.verb, plan.reason) == (Verb.CHANGE, "it runs as it was declared before")
    assert workshop.main(changed) != first
    assert processes.find(first) is None


def test_another_late_value_replaces_what_runs_without_being_shown(workshop: Workshop) -> None:
    resource = workshop.declare(SLEEP, environment={"KEY": "${secret.key}"})
    workshop.up(resource, {"secret.key": "first-value"})
    plan = workshop.up(resource, {"secret.key": "other-value"})
    assert plan.verb is Verb.CHANGE
    assert "value" not in plan.reason
    assert workshop.plan(resource, {"secret.key": "other-value"}).verb is Verb.KEEP


@pytest.mark.parametrize("before", [None, "old"])
def test_a_watched_file_that_changes_replaces_what_runs(workshop: Workshop, before: str | None) -> None:
    watched = workshop.ground / "a.conf"
    if before is not None:
        watched.write_text(before)
    resource = workshop.declare(SLEEP, watches=[str(watched), "/etc/passwd"])
    workshop.up(resource)
    assert workshop.plan(resource).verb is Verb.KEEP
    watched.write_text("new")
    plan = workshop.up(resource)
    assert (plan.verb, plan.reason) == (Verb.CHANGE, f"{watched} has changed since its start")
    assert workshop.plan(resource).verb is Verb.KEEP
    watched.unlink()
    assert workshop.plan(resource).verb is Verb.CHANGE


def test_one_that_ends_at_once_fails_with_its_last_line(workshop: Workshop) -> None:
    workshop.identity.log.parent.mkdir()
    workshop.identity.log.write_text("an older line\n")
    resource = workshop.declare("echo one; echo 'the \033[1mreason\033[0m' >&2; echo; exit 3")
    workshop = replace(workshop, kind=Service(with_systemd=lambda: False))
    with pytest.raises(Unavailable) as failure:
        workshop.up(resource)
    assert str(failure.value) == (
        f"The service web ended at once. The last line of {workshop.identity.log}: the [1mreason[0m"
    )
    with pytest.raises(Unavailable, match="It wrote nothing to"):
        workshop.up(workshop.declare("exit 0"))
    assert workshop.left() == []


def test_what_a_program_says_of_a_secret_is_not_repeated(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    resource = workshop.declare('echo "no such key: $KEY"; exit 1', environment={"KEY": "${secret.key}"})
    workshop = replace(workshop, kind=Service(with_systemd=lambda: False))
    with pytest.raises(Unavailable, match=r"no such key: \$\{secret\.key\}") as failure:
        workshop.up(resource, {"secret.key": "s3cr3t-value"})
    assert failure.value.__suppress_context__
    assert "s3cr3t-value" not in caplog.text


def test_a_program_that_cannot_be_executed_is_said(workshop: Workshop) -> None:
    program = workshop.ground / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(Unavailable) as failure:
        workshop.up(workshop.declare([str(program)], user="nobody"))
    assert str(failure.value) == (f"The service web can't start as nobody in /: {program}: No such file or directory.")
    with pytest.raises(Unavailable, match=r"can't start as root in /no/such: /no/such: No such file"):
        workshop.up(workshop.declare(SLEEP, directory="/no/such"))
    assert workshop.left() == []


def test_one_that_goes_to_the_background_is_told_to_stay(workshop: Workshop) -> None:
    resource = workshop.declare("setsid sleep 1000 & exit 0")
    workshop = replace(workshop, kind=Service(with_systemd=lambda: False))
    with pytest.raises(Unavailable, match="left others running, which were ended; have its command stay in"):
        workshop.up(resource)
    assert workshop.left() == []


def test_what_a_dead_main_process_left_is_ended_before_the_next_start(workshop: Workshop) -> None:
    resource = workshop.declare("setsid sleep 1000 & exec sleep 2000")
    workshop.up(resource)
    until(lambda: len(workshop.observe(resource).members) == 2)
    first = workshop.main(resource)
    os.kill(first, signal.SIGKILL)
    until(lambda: workshop.observe(resource).main is None)
    old = workshop.observe(resource).members
    assert len(old) == 1
    plan = workshop.up(resource)
    assert (plan.verb, plan.reason) == (Verb.CHANGE, "its main process has ended and left others behind")
    until(lambda: len(workshop.observe(resource).members) == 2)
    assert old.isdisjoint(workshop.observe(resource).members)


def test_one_that_died_is_started_again(workshop: Workshop) -> None:
    resource = workshop.declare(SLEEP)
    workshop.up(resource)
    os.kill(workshop.main(resource), signal.SIGKILL)
    until(lambda: not workshop.observe(resource).members)
    assert workshop.up(resource).verb is Verb.CREATE
    assert workshop.plan(resource).verb is Verb.KEEP


def test_what_runs_and_is_in_no_ledger_is_adopted(workshop: Workshop) -> None:
    resource = workshop.declare(SLEEP)
    workshop.up(resource)
    plan = workshop.kind.plan(workshop.wanted(resource), workshop.observe(resource), None)
    assert (plan.verb, plan.actions) == (Verb.ADOPT, ())


def test_two_state_folders_have_a_service_of_one_name_each(workshop: Workshop) -> None:
    other = Workshop(workshop.ground, workshop.ground / "other", workshop.kind)
    other.state.mkdir()
    one, two = workshop.declare(SLEEP), other.declare(SLEEP)
    workshop.up(one)
    assert other.up(two).verb is Verb.CREATE
    assert workshop.main(one) != other.main(two)
    assert workshop.observe(one).members.isdisjoint(other.observe(two).members)
    other.down(two)
    assert workshop.plan(one).verb is Verb.KEEP
    workshop.down(one)
    assert workshop.left() == []


@pytest.mark.parametrize(
    ("declared", "error", "words"),
    [
        ({"user": "no-such-user"}, Refused, "This machine has no user 'no-such-user'"),
        ({"command": ["/no/such/program"]}, Unavailable, "there is no program /no/such/program; install it"),
        ({"command": ["no-such-program"]}, Unavailable, "no-such-program is not on this machine"),
        (
            {"command": ["sh"], "environment": {"PATH": "/no/such"}},
            Unavailable,
            r"sh is not on this machine \(looked in /no/such\)",
        ),
    ],
)
def test_what_cannot_start_is_found_before_anything_is_touched(
    workshop: Workshop, declared: dict[str, object], error: type[Exception], words: str
) -> None:
    resource = workshop.declare(**{"command": SLEEP, **declared})  # type: ignore[arg-type]
    with pytest.raises(error, match=words):
        workshop.kind.check(resource.spec, workshop.machine, ())  # type: ignore[arg-type]
    package = parse_resource({"kind": "package", "name": "web"}, "resource", Context(workshop.state))
    workshop.kind.check(resource.spec, workshop.machine, [package])  # type: ignore[arg-type]


def test_a_program_that_an_earlier_file_brings_counts_as_there(workshop: Workshop) -> None:
    program = workshop.ground / "program"
    resource = workshop.declare([str(program)])
    item = {"kind": "file", "name": str(program), "content": "", "mode": "0755"}
    file = parse_resource(item, "resource", Context(workshop.state))
    workshop.kind.check(resource.spec, workshop.machine, [file])  # type: ignore[arg-type]
    own = workshop.declare(["${agent}", "serve"])
    workshop.kind.check(own.spec, workshop.machine, ())  # type: ignore[arg-type]


def test_another_user_needs_root(workshop: Workshop) -> None:
    resource = workshop.declare(SLEEP, user="daemon")
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            workshop.kind.check(resource.spec, workshop.machine, ())  # type: ignore[arg-type]
        except Refused as error:
            os._exit(0 if "needs root; run the agent as root" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_plan_is_pure_and_each_case_has_its_reason(workshop: Workshop) -> None:
    resource = workshop.declare(SLEEP)
    wanted = workshop.wanted(resource)
    workshop.up(resource)
    running = workshop.observe(resource)
    unready = Observed(running.main, running.members, running.stamp, (), ready=False)
    plan = workshop.kind.plan(wanted, unready, Held(False, wanted.stamp))
    assert (plan.verb, plan.actions) == (Verb.ADOPT, (Action.AWAIT,))
    # The crash came between its readiness and the ledger: nothing is left to do.
    assert workshop.kind.plan(wanted, running, Held(False, "")).verb is Verb.KEEP


def test_the_record_holds_what_identifies_a_start(workshop: Workshop) -> None:
    resource = workshop.declare([sys.executable, "-c", "import time; time.sleep(1000)"], watches=["/etc/passwd"])
    workshop.up(resource)
    written = json.loads(workshop.identity.record.read_text())
    assert written["pid"] == workshop.main(resource)
    assert written["ready"] is True
    assert list(written["watched"]) == ["/etc/passwd"]
