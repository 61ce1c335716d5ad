from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent.host import cgroups, processes
from tests.unit.kinds.service.workshop import Workshop, until

# Says on its standard output what it is asked by, and ends then.
POLITE = """
import signal, sys
def end(number, frame):
    print(sys.argv[1], signal.Signals(number).name, flush=True)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, end)
print(sys.argv[1], "begins", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def polite(workshop: Workshop) -> str:
    script = workshop.ground / "polite.py"
    script.write_text(POLITE)
    return f"{sys.executable} {script}"


def lines(workshop: Workshop) -> list[str]:
    return workshop.identity.log.read_text().splitlines()


def says(workshop: Workshop, line: str) -> bool:
    log: Path = workshop.identity.log
    return log.exists() and line in lines(workshop)


def stop(workshop: Workshop) -> list[str]:
    """Has the service replaced by one that says nothing, so that the log stays."""
    workshop.up(workshop.declare("exec sleep 1000"))
    said = lines(workshop)
    workshop.down(workshop.declare("exec sleep 1000"))
    assert workshop.left() == []
    return said


def test_the_declared_signal_is_sent(workshop: Workshop, polite: str) -> None:
    resource = workshop.declare(f"exec {polite} main", stop_signal="SIGINT")
    workshop.up(resource)
    until(lambda: says(workshop, "main begins"))
    workshop.up(workshop.declare("exec sleep 1000", stop_signal="SIGINT"))
    assert "main SIGINT" in lines(workshop)


def test_a_wrapper_that_dies_at_once_does_not_spare_the_rest_its_signal(workshop: Workshop, polite: str) -> None:
    resource = workshop.declare(f"{polite} child & wait")
    workshop.up(resource)
    until(lambda: says(workshop, "child begins"))
    assert "child SIGTERM" in stop(workshop)


def test_the_main_process_may_end_the_others_in_its_own_way(workshop: Workshop, polite: str) -> None:
    resource = workshop.declare(f"{polite} child & trap 'kill -USR1 $!; wait $!; exit 0' TERM; wait")
    workshop.up(resource)
    until(lambda: says(workshop, "child begins"))
    said = stop(workshop)
    assert "child SIGUSR1" in said
    assert "child SIGTERM" not in said


def test_a_wrapper_that_waits_for_its_child_does_not_keep_it_from_being_asked(workshop: Workshop, polite: str) -> None:
    # sh runs a trap only when what it waits for has ended.
    resource = workshop.declare(f"trap 'exit 0' TERM; {polite} child; echo 'sh goes on'", stop_timeout=2)
    workshop.up(resource)
    until(lambda: says(workshop, "child begins"))
    workshop.up(workshop.declare("exec sleep 1000", stop_timeout=2))
    assert "child SIGTERM" in lines(workshop)


def test_what_does_not_listen_is_killed_in_time(workshop: Workshop) -> None:
    resource = workshop.declare("trap '' TERM; sleep 1000 & echo begins; while :; do sleep 1000; done", stop_timeout=1)
    workshop.up(resource)
    until(lambda: says(workshop, "begins"))
    workshop.down(resource)
    assert workshop.left() == []


def test_what_starts_others_without_end_is_ended(workshop: Workshop) -> None:
    resource = workshop.declare(
        "trap '' TERM; f() { setsid sleep 0.2 & sleep 0.02; }; echo begins; while :; do f; done", stop_timeout=1
    )
    workshop.up(resource)
    until(lambda: says(workshop, "begins"))
    workshop.down(resource)
    until(lambda: not workshop.left())
    assert not workshop.observe(resource).members


def test_a_child_that_drops_the_environment_is_ended_with_its_parent(workshop: Workshop) -> None:
    resource = workshop.declare("env -i sleep 1000 & env -i sh -c 'sleep 2000; :' & wait")
    workshop.up(resource)
    until(lambda: len(workshop.observe(resource).members) == 4)
    workshop.leave_group()
    assert len(workshop.observe(resource).members) == 4
    members = workshop.observe(resource).members
    workshop.down(resource)
    assert not any(processes.is_alive(process) for process in members)


def test_a_daemon_that_drops_the_environment_does_not_leave_the_control_group(workshop: Workshop) -> None:
    # It leaves session, parent and environment behind, as a daemon may; its argument is how the test finds it.
    daemon = "setsid env -i sh -c 'while :; do sleep 1000; done' \"$0\" &"
    resource = workshop.declare(f"({daemon}); exec sleep 1000")
    workshop.up(resource)
    group = cgroups.find(workshop.identity.group)
    daemons = set(workshop.left()) - {workshop.main(resource)}
    assert daemons
    if group is None:  # The documented limit of a machine where none can be made.
        assert daemons.isdisjoint(process.pid for process in workshop.observe(resource).members)
        return
    assert daemons <= {process.pid for process in workshop.observe(resource).members}
    workshop.down(resource)
    assert workshop.left() == []
    assert cgroups.find(workshop.identity.group) is None
