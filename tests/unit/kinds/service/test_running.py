"""What is taken for a service's and what isn't: crashes, lost records, pids of others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.host import processes
from agent.host.processes import Process
from agent.kinds import watches
from agent.kinds.kind import Machine, Verb
from agent.kinds.service import record
from agent.kinds.service.record import Start
from agent.kinds.service.service import Action
from agent.resources import Resource
from tests.unit.kinds.service.workshop import Workshop, until

REPOSITORY = Path(__file__).parents[4]
MACHINE = Machine(Path("/state"), b"key", lambda name: iter(()))
SLEEP = "exec sleep 1000"

# An agent of its own: applies the service that its arguments declare, as the reconciler does.
AGENT = """
import json, sys
from pathlib import Path
from agent.kinds.kind import Held, Machine, Verb, Wanted
from agent.kinds.service import Service
from agent.resources import Context, parse_resource
state = Path(sys.argv[1])
machine = Machine(state, b"key", lambda name: iter(()))
resource = parse_resource(json.loads(sys.argv[2]), "resource", Context(state))
wanted, kind = Wanted(resource, machine.stamp(resource, {})), Service(settling=0.2, with_systemd=lambda: False)
print("applies", flush=True)
plan = kind.plan(wanted, kind.observe(wanted, machine), Held(False, ""))
if plan.verb is not Verb.KEEP:
    kind.apply(wanted, plan, machine.mark(wanted, found=False), machine)
"""


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def another_agent(workshop: Workshop, resource: Resource) -> subprocess.Popen[bytes]:
    """Has another process apply the resource; returns when it begins to."""
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(workshop.state), resource.source],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"applies\n"
    return agent


def kill(agent: subprocess.Popen[bytes]) -> None:
    agent.kill()
    agent.wait()
    assert agent.stdout is not None
    agent.stdout.close()


def test_an_agent_killed_while_it_waits_leaves_what_the_next_one_goes_on_with(workshop: Workshop) -> None:
    started, ready = workshop.ground / "started", workshop.ground / "ready"
    resource = workshop.declare(
        f"echo $$ >> {started}; {SLEEP}", ready={"file": str(ready), "timeout": 30}, user="root"
    )
    agent = another_agent(workshop, resource)
    until(started.exists)
    kill(agent)
    pid = workshop.main(resource)
    plan = workshop.plan(resource)
    assert (plan.verb, plan.actions) == (Verb.ADOPT, (Action.AWAIT,))
    ready.touch()
    workshop.up(resource)
    assert workshop.main(resource) == pid
    assert workshop.plan(resource).verb is Verb.KEEP
    assert started.read_text() == f"{pid}\n"


def test_an_agent_killed_at_any_moment_starts_nothing_twice(workshop: Workshop) -> None:
    started = workshop.ground / "started"
    resource = workshop.declare(f"echo $$ >> {started}; {SLEEP}")
    for moment in range(12):
        agent = another_agent(workshop, resource)
        time.sleep(moment * 0.015)  # Not to wait for something: this is the moment.
        kill(agent)
        workshop.up(resource)
        pids = [int(line) for line in started.read_text().splitlines()]
        alive = [pid for pid in pids if processes.find(pid)]
        assert alive == [workshop.main(resource)]
        assert len(workshop.observe(resource).members) == 1
        assert workshop.plan(resource).verb is Verb.KEEP
        workshop.down(resource)
        assert workshop.left() == []
        started.unlink()


def test_an_agent_killed_while_idle_leaves_the_service_alone(workshop: Workshop) -> None:
    resource = workshop.declare("sleep 1000 & wait")
    agent = another_agent(workshop, resource)
    assert agent.wait() == 0
    kill(agent)
    before = workshop.observe(resource).members
    assert len(before) == 2
    assert workshop.plan(resource).verb is Verb.KEEP
    assert workshop.observe(resource).members == before


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"pid": 1}', b"\xff"])
def test_a_lost_record_is_made_anew_from_what_runs(workshop: Workshop, content: bytes | None) -> None:
    # The sleeper that was left in the background is younger, and its parent is the main process.
    resource = workshop.declare("sleep 1000 & wait", watches=["/etc/passwd"])
    workshop.up(resource)
    before = workshop.observe(resource)
    if content is None:
        workshop.identity.record.unlink()
    else:
        workshop.identity.record.write_bytes(content)
    plan = workshop.up(resource)
    assert (plan.verb, plan.actions) == (Verb.ADOPT, (Action.AWAIT,))
    assert workshop.observe(resource) == before
    assert workshop.plan(resource).verb is Verb.KEEP


def test_without_a_record_what_runs_is_still_known_by_its_environment(workshop: Workshop) -> None:
    watched = workshop.ground / "a.conf"
    watched.write_text("old")
    resource = workshop.declare(SLEEP, watches=[str(watched)])
    workshop.up(resource)
    workshop.identity.record.unlink()
    workshop.leave_group()
    other = workshop.declare(SLEEP, watches=[str(watched)], environment={"A": "1"})
    assert workshop.plan(other).verb is Verb.CHANGE
    watched.write_text("new")
    plan = workshop.plan(resource)
    assert (plan.verb, plan.reason) == (Verb.CHANGE, f"{watched} has changed since its start")


def test_what_a_dead_wrapper_left_is_not_taken_for_a_ready_service_when_the_record_is_lost(
    workshop: Workshop,
) -> None:
    ready = workshop.ground / "ready"
    resource = workshop.declare(
        f"setsid sleep 1000 & touch {ready}; {SLEEP}",
        ready={"command": ["sh", "-c", f"test -e {ready}"], "timeout": 1},
    )
    workshop.up(resource)
    os.kill(workshop.main(resource), signal.SIGKILL)
    workshop.identity.record.unlink()
    ready.unlink()
    until(lambda: len(workshop.observe(resource).members) == 1)
    left = workshop.observe(resource).members
    workshop.up(resource)
    assert left.isdisjoint(workshop.observe(resource).members)
    assert workshop.plan(resource).verb is Verb.KEEP


def test_a_zombie_is_no_running_service(workshop: Workshop) -> None:
    resource = workshop.declare(SLEEP)
    zombie = subprocess.Popen(["sh", "-c", "read _"], stdin=subprocess.PIPE)
    process = processes.find(zombie.pid)
    assert process is not None
    record.write(workshop.identity.record, recorded(workshop, resource, process))
    assert workshop.observe(resource).main == process
    assert zombie.stdin is not None
    zombie.stdin.close()
    until(lambda: processes.find(zombie.pid) is None)
    assert Path(f"/proc/{zombie.pid}").exists()
    plan = workshop.plan(resource)
    zombie.wait()
    assert plan.verb is Verb.CREATE


def test_a_pid_that_was_given_out_again_is_not_taken_for_the_service(
    workshop: Workshop, stranger: subprocess.Popen[bytes]
) -> None:
    resource = workshop.declare(SLEEP)
    process = processes.find(stranger.pid)
    assert process is not None
    earlier = Process(process.pid, process.started - 1)
    record.write(workshop.identity.record, recorded(workshop, resource, earlier))
    assert workshop.plan(resource).verb is Verb.CREATE
    workshop.up(resource)
    workshop.down(resource)
    assert stranger.poll() is None


def test_after_a_reboot_a_record_says_nothing(workshop: Workshop, stranger: subprocess.Popen[bytes]) -> None:
    resource = workshop.declare(SLEEP)
    process = processes.find(stranger.pid)
    assert process is not None
    start = replace(recorded(workshop, resource, process), boot="00000000-0000-0000-0000-000000000000")
    record.write(workshop.identity.record, start)
    assert workshop.plan(resource).verb is Verb.CREATE
    workshop.down(resource)
    assert stranger.poll() is None


def test_what_carries_the_mark_in_a_container_is_another_agents(workshop: Workshop) -> None:
    resource = workshop.declare(SLEEP)
    mark = {"AGENT_SERVICE": workshop.identity.mark}
    container = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "sleep 1000; :", str(workshop.ground)],
        env={"PATH": os.environ["PATH"]},
    )
    inside = subprocess.Popen(
        [
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "env",
            f"AGENT_SERVICE={mark['AGENT_SERVICE']}",
            "sleep",
            "1000",
        ],
        env={"PATH": os.environ["PATH"]},
    )
    try:
        until(lambda: processes.with_environment("AGENT_SERVICE", workshop.identity.mark))
        assert not workshop.observe(resource).members
        workshop.down(resource)
        assert inside.poll() is None
    finally:
        for process in (container, inside):
            process.kill()
            process.wait()


def test_a_record_reads_back_as_it_was_written(workshop: Workshop) -> None:
    path = workshop.identity.record
    start = Start(Process(7, 9), record.boot_id(), "stamp", {"/a b": "00"}, 5, "1:2:3", ready=True)
    record.write(path, start)
    assert record.read(path) == start
    assert json.loads(path.read_text())["boot"] == record.boot_id()
    assert record.read(path.with_name("other.json")) is None


def test_a_record_that_cannot_be_written_keeps_the_service_from_running(workshop: Workshop) -> None:
    resource = workshop.declare(f"touch '{workshop.ground}/ran'; {SLEEP}")
    workshop.identity.record.mkdir(parents=True)
    wanted = workshop.wanted(resource)
    (workshop.identity.record / "in the way").touch()
    with pytest.raises(Exception, match=r"web\.json"):
        workshop.up(resource)
    workshop.identity.record.joinpath("in the way").unlink()
    workshop.identity.record.rmdir()
    until(lambda: not workshop.left())
    assert not (workshop.ground / "ran").exists()
    assert wanted.stamp


def recorded(workshop: Workshop, resource: Resource, process: Process) -> Start:
    stamp = workshop.wanted(resource).stamp
    return Start(process, record.boot_id(), stamp, {}, 0, "", ready=True)


def test_digests_and_looks_know_what_is_no_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    file = tmp_path / "file"
    file.write_bytes(b"")
    found = watches.digests([file, fifo, tmp_path, tmp_path / "no", file / "below"], MACHINE)
    assert found[str(file)].startswith("e3b0c442")
    assert [found[str(path)] for path in (fifo, tmp_path, tmp_path / "no", file / "below")] == [""] * 4
    before = watches.look_of(file)
    os.utime(file, ns=(1, 1))
    assert watches.look_of(file) != before
    assert watches.look_of(tmp_path / "no") == ""
    with pytest.raises(Unavailable, match="Reading the watched file"):
        watches.digests([Path("/", "x" * 300)], MACHINE)


def test_the_agent_s_own_copy_is_told_by_what_it_is_and_not_read(tmp_path: Path) -> None:
    copy, beside = tmp_path / "agent", tmp_path / "beside"
    found = watches.digests([copy, beside], replace(MACHINE, state=tmp_path, program="one"))
    assert found == {str(copy): "one", str(beside): ""}
    assert watches.digests([copy], replace(MACHINE, program="one")) == {str(copy): ""}
    copy.write_bytes(b"")
    assert watches.digests([copy], replace(MACHINE, state=tmp_path))[str(copy)].startswith("e3b0c442")
