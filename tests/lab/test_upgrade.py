"""Another file where systemd keeps the agent: whichever way it comes, the unit runs it, and what runs goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.built.conftest import pack
from tests.built.newer import VERSION
from tests.lab.conftest import MakeMachine
from tests.lab.machines import STATE, Machine

# The first test waits for the machines' image.
pytestmark = pytest.mark.timeout(900)

AGENT = "mesh-agent.service"
BUNDLE = """
name = "steps"
[params]
word = "{word}"
[[resource]]
kind = "service"
name = "sleeper"
command = ["/bin/sleep", "100000"]
[[resource]]
kind = "file"
name = "/root/word"
content = "${{param.word}}"
template = true
[[resource]]
kind = "service"
name = "watcher"
directory = "/root"
watches = ["${{agent}}"]
command = ["/bin/sh", "-c", "echo started after $(cat word) >>starts; exec sleep 100000"]
ready = {{ file = "/root/starts" }}
"""
KEEPS = f"{AGENT} runs the agent now and after every reboot; `journalctl -u {AGENT}` shows what it says"


def put(machine: Machine, file: Path, word: str, folder: Path) -> str:
    """Put a file there that carries this word; its path."""
    machine.put(pack(file, BUNDLE.format(word=word), {}, folder / word), Path(f"/root/{word}"))
    return f"/root/{word}"


def starts(machine: Machine) -> list[str]:
    return machine.read(Path("/root/starts")).splitlines()


def status(machine: Machine) -> Mapping[str, Any]:
    """As the file says that is settled there."""
    return dict(json.loads(machine.ask(STATE / "agent", "status", "-o", "json")))


def agent_of(machine: Machine) -> int:
    """The agent that the unit runs and that holds the state folder."""
    machine.wait(lambda: status(machine)["agent"] == machine.main(AGENT) != 0)
    return machine.main(AGENT)


def test_the_unit_runs_whatever_file_came_last(
    machine: MakeMachine, built_file: Path, newer_file: Path, tmp_path: Path
) -> None:
    made = machine("u", BUNDLE.format(word="old"))
    made.raise_()
    made.ask("/root/agent", "install")
    first, sleeper = agent_of(made), made.main("sleeper.service")

    # `up` in a shell raises there, and leaves the rest to the unit; what was asked of it is remembered.
    newer = put(made, newer_file, "new", tmp_path)
    told = made.ask(newer, "up", "--set", "word=newer").splitlines()
    assert told[1].startswith("this file takes the place of another: version ")
    assert f"change  service:watcher  {STATE}/agent has changed since its start" in told
    assert f"the agent that ran here (process {first}) has ended; all that it raised runs on" in told
    assert told[-1] == KEEPS
    second = agent_of(made)
    assert second != first
    assert made.ask(STATE / "agent", "--version").startswith(f"agent {VERSION}, ")
    assert starts(made) == ["started after old", "started after newer"]
    made.sh("mv /root/new /root/moved")

    # The older file doesn't understand the ledger; the same one has nothing to take over.
    for command in (("/root/agent", "up"), ("/root/agent", "install"), ("/root/agent", "plan")):
        done = made.run(*command)
        assert (done.returncode, done.stdout) == (1, ""), done.stdout
        assert "ledger.db has schema 2, this program knows up to 1" in done.stderr
    for command in (("/root/moved", "up"), (STATE / "agent", "up"), ("/root/moved", "up", "--once")):
        done = made.run(*command)
        assert (done.returncode, done.stdout) == (1, ""), done.stdout
        assert f"an agent is already running on {STATE} (process {second})" in done.stderr
    assert agent_of(made) == second

    # Installing another file has the unit run that one, but not while it is all taken away again.
    made.ask("/root/moved", "uninstall")
    made.sh("cd /root; mkfifo typed; script -qfc '/root/moved reset' asked <>typed >/dev/null 2>&1 & echo $! >asking")
    made.wait(lambda: made.exists(Path("/root/asked")) and "remove all of this?" in made.read(Path("/root/asked")))
    done = made.run("/root/moved", "install")
    assert (done.returncode, done.stdout) == (1, ""), done.stdout
    assert f"an agent is already running on {STATE}" in done.stderr
    assert not made.exists(Path(f"/etc/systemd/system/{AGENT}"))
    made.sh("kill $(cat /root/asking)")
    made.wait(lambda: status(made)["agent"] is None)
    made.ask("/root/moved", "install")
    second = agent_of(made)
    third = put(made, newer_file, "third", tmp_path)
    told = made.ask(third, "install").splitlines()
    assert told[0].startswith("this file takes the place of another: bundle steps ")
    assert told[-1] == f"{KEEPS}, `agent uninstall` undoes this"
    assert agent_of(made) != second
    made.wait(lambda: len(starts(made)) == 3)
    assert starts(made)[2] == "started after newer"
    made.wait(lambda: {line["state"] for line in status(made)["resources"]} == {"as declared"})
    assert made.main("sleeper.service") == sleeper
    assert made.sh("systemctl is-system-running") == "running"
