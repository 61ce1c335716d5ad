"""What survives when the agent, the substrate or the whole machine is killed, and what `up` then does again: nothing
that was done already."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.built.conftest import MakeMachine, Mesh
from tests.built.lab import LONG, SHORT, Agent, is_alive, look_of, wait_until


@pytest.fixture
def place(mesh: Mesh) -> Path:
    """A fresh folder on the joiner, to which nothing is assigned."""
    assert mesh.founder.declare("b", [], "--retire").returncode == 0
    return Path(tempfile.mkdtemp(prefix="place-", dir=mesh.joiner.folder))


def slow(place: Path) -> dict[str, Any]:
    """A service that is ready once somebody makes the file `go`, and that tells each of its starts."""
    script = (
        f"echo start >>{place}/starts; until [ -e {place}/go ]; do sleep 0.05; done; : >{place}/ready; exec sleep 9999"
    )
    command = ["/bin/sh", "-c", script]
    return {"kind": "service", "name": "slow", "command": command, "ready": {"file": f"{place}/ready", "timeout": 120}}


def steps(agent: Agent) -> dict[str, str]:
    """What an `up` did with each resource, by id."""
    words = [line.split() for line in agent.lines if "/" in line.partition(" ")[0] or "/" in line[:8]]
    return {line[1]: line[2] for line in words if len(line) > 2}


def test_killed_idle_agent_takes_nothing_with_it(mesh: Mesh) -> None:
    before, since = mesh.founder.processes(), mesh.founder.status()
    mesh.founding.kill()
    assert mesh.founder.json("status")["agent"] is None
    assert mesh.founder.processes() == before
    assert mesh.founder.json("control", "node", "list")["serving"]
    mesh.founding = mesh.founder.back()
    assert mesh.founding.lines[0] == "a is back (founder)"
    assert set(steps(mesh.founding)) == {id for id, line in since.items() if line["origin"] == "carried"}
    assert set(steps(mesh.founding).values()) == {"kept"}
    assert mesh.founder.processes() == before
    assert mesh.founder.status() == since


def test_killed_while_a_service_gets_ready(mesh: Mesh, place: Path) -> None:
    names = [f"{place}/{name}" for name in ("before", "after")]
    files: list[dict[str, Any]] = [{"kind": "file", "name": name, "content": name} for name in names]
    listed = [files[0], slow(place), files[1]]
    assert mesh.founder.declare("b", listed, "--detach").returncode == 0
    wait_until((place / "starts").exists, LONG)
    mesh.joining.kill()
    pid, before = mesh.joiner.main_process("slow"), look_of(place / "before")
    assert mesh.joiner.status()["service:slow"]["state"] == "half-made"
    mesh.joining = mesh.joiner.up()
    mesh.joining.wait_for("waiting for declarations")
    assert not (place / "after").exists()
    (place / "go").touch()
    mesh.joining.wait_for("is true here")
    assert mesh.joiner.main_process("slow") == pid
    assert pid in mesh.joiner.processes("slow")
    assert (place / "starts").read_text() == "start\n"
    assert (place / "after").exists()
    assert look_of(place / "before") == before
    assert {line["state"] for line in mesh.joiner.status().values()} == {"as declared"}

    def reported() -> bool:
        node = mesh.founder.json("control", "node", "show", "b")
        return bool(node["applied"] == node["wanted"])

    wait_until(reported, SHORT)


def test_killed_among_many_files(mesh: Mesh, place: Path) -> None:
    folder = place / "many"
    names = [f"{folder}/{number:03}" for number in range(300)]
    listed: list[dict[str, Any]] = [{"kind": "directory", "name": str(folder)}]
    listed += [{"kind": "file", "name": name, "content": name * 50} for name in names]
    assert mesh.founder.declare("b", listed, "--detach").returncode == 0
    seen: dict[str, Any] = {}
    for number in (0, 50, 150, 250):
        wait_until(Path(names[number]).exists, LONG, lambda: mesh.joining.output)
        mesh.joining.kill()
        look = {path: look for path, look in look_of(folder).items() if path in names}
        assert {path: look[path] for path in seen} == seen
        seen = look
        mesh.joining = mesh.joiner.up()
    mesh.joining.wait_for("is true here")
    mesh.joining.wait_for("waiting for declarations")
    after = look_of(folder)
    assert {path: after[path] for path in seen} == seen
    assert sorted(after) == [str(folder), *names]
    assert all(Path(name).read_text() == name * 50 for name in names)


def test_lost_ledger_is_made_anew_from_what_bears_the_mark(mesh: Mesh, place: Path) -> None:
    for name, content in (("found", "mine"), ("foreign", "ours")):
        (place / name).write_text(content)
    listed = [
        {"kind": "file", "name": f"{place}/made", "content": "ours"},
        {"kind": "file", "name": f"{place}/found", "content": "ours"},
        {"kind": "file", "name": f"{place}/foreign", "content": "ours"},
        {"kind": "service", "name": "sleeper", "command": ["/bin/sh", "-c", "exec sleep 99999"]},
    ]
    assert mesh.founder.declare("b", listed).returncode == 0
    founder, joiner = mesh.founder, mesh.joiner
    before, files = (founder.processes(), joiner.processes()), look_of(place)
    for agent, machine in ((mesh.founding, founder), (mesh.joining, joiner)):
        agent.kill()
        for path in machine.state.glob("ledger.db*"):
            path.unlink()
    mesh.founding, mesh.joining = founder.back(), joiner.back()
    mesh.joining.wait_for("is true here")
    assert (founder.processes(), joiner.processes()) == before
    assert look_of(place) == files
    assert set(steps(mesh.founding).values()) == {"adopted"}
    assert founder.status()["service:broker"]["found"] is False
    found = {id: line["found"] for id, line in joiner.status().items()}
    assert found == {
        f"file:{place}/made": False,
        f"file:{place}/found": True,
        f"file:{place}/foreign": True,
        "service:sleeper": False,
    }
    done = founder.declare("b", [], "--retire")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not joiner.processes("sleeper")
    assert {path.name: path.read_text() for path in place.iterdir()} == {"found": "mine", "foreign": "ours"}


def test_killed_broker_is_missed_and_raised_again(mesh: Mesh, place: Path) -> None:
    control = mesh.founder.main_process("control")
    mesh.founder.kill("broker")
    for agent in (mesh.founding, mesh.joining):
        agent.wait_for("no link to the mesh")
    status = mesh.joiner.json("status")
    assert status["link"]["state"] == "down"
    assert status["link"]["why"]
    # What is declared meanwhile is kept, and sent as soon as it can be.
    file = {"kind": "file", "name": f"{place}/meanwhile", "content": "sent"}
    assert mesh.founder.declare("b", [file], "--detach").returncode == 0
    mesh.founding.wait_for("put right: service:broker created")
    assert mesh.founder.main_process("control") == control
    wait_until((place / "meanwhile").exists, LONG, lambda: mesh.joining.output)
    assert mesh.joining.output.count("waiting for declarations") == 2
    assert "Traceback" not in mesh.joining.output + (mesh.founder.state / "log" / "control.log").read_text()
    assert [node["state"] for node in mesh.founder.json("control", "node", "list")["nodes"]] == ["here", "here"]
    wait_until(lambda: mesh.founding.output.count("waiting for declarations") == 2, LONG, lambda: mesh.founding.output)


def test_killed_control_plane_comes_back(mesh: Mesh, place: Path) -> None:
    broker = mesh.founder.processes("broker")
    assert mesh.founding.end() == 0
    mesh.founder.kill("control")
    assert not mesh.founder.json("control", "node", "list")["serving"]
    assert mesh.founder.status()["service:control"]["state"] == "missing"
    file = {"kind": "file", "name": f"{place}/meanwhile", "content": "sent"}
    assert mesh.founder.declare("b", [file], "--detach").returncode == 0
    mesh.founding = mesh.founder.back()
    assert {id for id, what in steps(mesh.founding).items() if what != "kept"} == {"service:control"}
    wait_until((place / "meanwhile").exists, LONG, lambda: mesh.joining.output)
    # The broker starts short-lived processes of its own.
    assert set(filter(is_alive, broker)) <= mesh.founder.processes("broker")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_founder_that_lost_how_it_logs_in_joins_again(
    mesh: Mesh, place: Path, damage: Callable[[Path], object]
) -> None:
    file = {"kind": "file", "name": f"{place}/declared", "content": ""}
    assert mesh.founder.declare("a", [file]).returncode == 0
    before, applied = mesh.founder.processes(), mesh.founder.json("control", "node", "show", "a")["applied"]
    assert mesh.founding.end() == 0
    membership = mesh.founder.state / "identity" / "membership.json"
    damage(membership)
    if membership.exists():
        damaged = mesh.founder.up()
        damaged.wait_for("membership.json is damaged")
        assert (
            "or remove it and join again with a new token (`agent up --token-file FILE`; a founder's" in damaged.output
        )
        assert damaged.end() == 0
        membership.unlink()
    mesh.founding = mesh.founder.back()
    assert mesh.founding.output.count("enrolled as a\n") == 1
    assert set(filter(is_alive, before)) <= mesh.founder.processes()
    token = mesh.founder.state / "control" / "founder.token"
    wait_until(lambda: not token.exists(), SHORT)
    # It is the same node, which is declared to and heard as before.
    assert mesh.founder.declare("a", [{**file, "content": "more"}]).returncode == 0
    assert mesh.founder.json("control", "node", "show", "a")["applied"] == applied + 1
    assert mesh.founder.declare("a", [], "--retire").returncode == 0


def test_both_machines_lose_power(mesh: Mesh, place: Path) -> None:
    sleeper = {"kind": "service", "name": "sleeper", "command": ["/bin/sh", "-c", "exec sleep 99999"]}
    file = {"kind": "file", "name": f"{place}/file", "content": "of before"}
    assert mesh.founder.declare("b", [file, sleeper]).returncode == 0
    mesh.founder.lose_power()
    mesh.joiner.lose_power()
    assert not mesh.founder.processes() | mesh.joiner.processes()
    (place / "file").unlink()
    # The joiner is first, and has nobody to ask.
    mesh.joining = mesh.joiner.up()
    mesh.joining.wait_for("is true here")
    mesh.joining.wait_for("no link to the mesh")
    assert (place / "file").read_text() == "of before"
    pid = mesh.joiner.main_process("sleeper")
    assert pid in mesh.joiner.processes("sleeper")
    assert {line["state"] for line in mesh.joiner.status().values()} == {"as declared"}
    file["content"] = "of after"
    assert mesh.founder.declare("b", [file, sleeper], "--detach").returncode == 0
    mesh.founding = mesh.founder.back()
    assert {id for id, what in steps(mesh.founding).items() if what != "kept"} == {"service:broker", "service:control"}
    wait_until(lambda: (place / "file").read_text() == "of after", LONG, lambda: mesh.joining.output)
    assert mesh.joiner.main_process("sleeper") == pid
    mesh.joining.wait_for("waiting for declarations")


def is_whole(path: Path) -> bool:
    """Whether it was written to its end. What wasn't is written again; a key without its certificate is half a pair."""
    if path.suffix == ".key" and not path.with_suffix(".crt").exists():
        return False
    return path.is_file() and path.suffix != ".tmp"


def test_first_raise_killed_at_each_step(machine: MakeMachine) -> None:
    one = machine(
        "one",
        '''
        name = "pieces"
        [params]
        place = ""
        [[resource]]
        kind = "directory"
        name = "${param.place}"
        data = true
        [[resource]]
        kind = "secret"
        name = "word"
        [[resource]]
        kind = "certificate"
        name = "broker"
        [[resource]]
        kind = "file"
        name = "${param.place}/file"
        content = "${secret.word} ${fingerprint.broker}"
        template = true
        [[resource]]
        kind = "service"
        name = "slow"
        command = ["/bin/sh", "-c", """
        echo start >>starts; until [ -e go ]; do sleep 0.05; done; : >ready; exec sleep 9999"""]
        directory = "${param.place}"
        ready = { file = "${param.place}/ready", timeout = 120 }
        ''',
    )
    place = one.folder / "place"
    one.params = {"place": str(place)}
    seen: dict[str, Any] = {}
    for step in ("keeps it so", "1/5", "2/5", "3/5", "4/5"):
        agent = one.up("--name", "one", *one.settings)
        agent.wait_for(step)
        agent.kill()
        look = look_of(place / "file", one.state / "secrets", one.state / "identity")
        assert {path: look[path] for path in seen} == seen
        seen = {path: facts for path, facts in look.items() if is_whole(Path(path))}
    agent = one.up("--name", "one", *one.settings)
    wait_until((place / "starts").exists, SHORT)
    agent.kill()
    pid = one.main_process("slow")
    last = one.up("--name", "one", *one.settings)
    (place / "go").touch()
    last.wait_for("is raised is kept so")
    assert one.processes() == {pid}
    assert (place / "starts").read_text() == "start\n"
    assert {path: look_of(Path(path))[path] for path in seen} == seen
    assert last.end() == 0
    one.ask("reset", "--yes")
    assert not one.processes()
    assert not place.exists()
    assert not one.state.exists()


def test_founding_killed_in_pieces_then_left_without_a_trace(machine: MakeMachine) -> None:
    founder, joiner = machine("a"), machine("b")
    kept: dict[str, str] = {}
    broker = 0
    for step in ("founds a new mesh", " 3/14 ", " 9/14 ", "11/14 ", "12/14 ", "14/14 "):
        agent = founder.up("--name", "a", *founder.settings)
        agent.wait_for(step)
        if step == "11/14 ":
            # It runs, but nobody can log in yet.
            wait_until((founder.folder / "log" / "broker.log").exists, SHORT)
            broker = founder.main_process("broker")
        agent.kill()
        secrets = {str(path): path.read_text() for path in founder.state.glob("secrets/*/*") if path.suffix != ".tmp"}
        assert {path: secrets[path] for path in kept} == kept
        kept = secrets
    assert founder.main_process("broker") == broker
    control = founder.main_process("control")
    agent = founder.back()
    assert set(steps(agent).values()) == {"kept"}
    assert (founder.main_process("broker"), founder.main_process("control")) == (broker, control)
    assert broker in founder.processes("broker")
    assert control in founder.processes("control")
    assert [node["name"] for node in founder.json("control", "node", "list")["nodes"]] == ["a"]

    joining = joiner.up("--token-file", "-", stdin=founder.ask("control", "token", "create", "b"))
    joining.wait_for("waiting for declarations")
    found = joiner.folder / "found"
    found.write_text("mine")
    found.chmod(0o604)
    os.chown(found, 65534, 65534)
    before = look_of(found)[str(found)]
    listed = [
        {"kind": "directory", "name": f"{joiner.folder}/made"},
        {"kind": "file", "name": f"{joiner.folder}/made/file", "content": ""},
        {"kind": "file", "name": str(found), "content": "ours", "mode": "0600"},
        {"kind": "secret", "name": "word"},
        {"kind": "service", "name": "sleeper", "command": ["/bin/sh", "-c", "sleep 99999 & exec sleep 99999"]},
    ]
    done = founder.declare("b", listed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(joiner.processes("sleeper")) == 2
    assert (joining.end(), agent.end()) == (0, 0)
    everything = founder.processes() | joiner.processes()
    assert everything
    for machine_ in (joiner, founder):
        told = machine_.ask("reset", "--yes").splitlines()
        assert told[-1] == f"{machine_.state} is gone, and nothing is left but what is said above"
        assert not machine_.state.exists()
        assert not machine_.processes()
        assert not machine_.control_groups()
    assert not any(map(is_alive, everything))
    after = look_of(found)[str(found)]
    assert (after[:3], after[4]) == (before[:3], before[4])
    assert {path.name for path in joiner.folder.iterdir()} == {"found", "said.0"}
    assert all(path.name.startswith("said.") for path in founder.folder.iterdir())
