"""The life of a mesh, as the people who run it see it: founding, joining, declaring, looking, leaving."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.built.conftest import ROOT, MakeMachine, Mesh
from tests.built.lab import LONG, Machine, look_of, wait_until

SLEEPER = ["/bin/sh", "-c", "exec sleep 100000"]


@pytest.fixture
def place(mesh: Mesh) -> Path:
    """A fresh folder on the joiner, declared by nobody."""
    folder = mesh.joiner.folder / "place"
    empty(mesh)
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    return folder


def empty(mesh: Mesh) -> None:
    """Have nothing assigned to the joiner."""
    done = mesh.founder.declare("b", [], "--retire")
    assert done.returncode == 0, done.stdout + done.stderr


def declare(mesh: Mesh, *resources: dict[str, object]) -> str:
    """Declare these to the joiner, which applies them; what was said there of it."""
    said = len(mesh.joining.output)
    done = mesh.founder.declare("b", list(resources))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "b has applied it"
    return mesh.joining.output[said:]


def test_founding_tells_each_step(mesh: Mesh) -> None:
    lines = mesh.founding.lines
    founder = mesh.founder
    assert lines[0] == "no token was given, so this machine founds a new mesh, as a"
    steps = [re.fullmatch(r" *(\d+)/(\d+) +(\S+)  (created|adopted)  \d+\.\d s(  .+)?", line) for line in lines[1:15]]
    assert all(steps), lines
    told = [step.groups()[:3] for step in steps if step]
    ids = list(founder.status())
    assert told == [(str(at), "14", id) for at, id in enumerate(ids, 1)]
    assert ids[0] == "package:openssl"
    assert ids[-1] == "service:control"
    carried = lines[15]
    assert carried.startswith("carried ports: ")
    assert all(f":{port}/tcp (service:broker)" in carried for port in founder.ports.values())
    assert lines[16].startswith("broker, control run on by themselves when this shell or this agent ends")
    assert lines[17:19] == [
        "enrolled as a",
        f"connected to amqps://127.0.0.1:{founder.ports['broker_port']} as node.a; waiting for declarations",
    ]


def test_joining_raises_nothing_and_is_told(mesh: Mesh) -> None:
    assert re.fullmatch(r"mesh-join-1\.\S+\n", mesh.token)
    lines = mesh.joining.lines
    assert re.fullmatch(r"joining the mesh at amqps://\S+, as b", lines[0])
    assert lines[1] == "enrolled as b"
    assert re.fullmatch(r"connected to amqps://\S+ as node\.b; waiting for declarations", lines[2])
    assert mesh.joiner.json("ports") == []
    assert mesh.joiner.ask("ports").splitlines() == ["PORT  ORIGIN  RESOURCE  OPEN BY"]
    assert not (mesh.joiner.state / "identity" / "token").exists()


def test_a_token_is_good_for_one_machine(mesh: Mesh, machine: MakeMachine) -> None:
    other = machine("b2").up("--token-file", "-", stdin=mesh.token)
    other.wait_for("no link to the mesh")
    other.end()
    assert "Traceback" not in other.output


def test_status_shows_every_resource(mesh: Mesh) -> None:
    status = mesh.founder.json("status")
    assert (status["node"], status["role"], status["agent"]) == ("a", "founder", mesh.founding.process.pid)
    assert status["link"]["state"].startswith("up")
    assert status["link"]["why"] is None
    broker = mesh.founder.status()["service:broker"]
    assert (broker["origin"], broker["state"], broker["found"]) == ("carried", "as declared", False)
    assert f"*:{mesh.founder.ports['broker_port']}/tcp" in broker["ports"]
    assert {line["state"] for line in status["resources"]} == {"as declared"}
    text = mesh.founder.ask("status")
    assert f"node     a, founder; the agent is running (process {mesh.founding.process.pid})\n" in text
    assert re.search(r"\nlink     up, to amqps://\S+ for \d+", text)
    for id in mesh.founder.status():
        assert f"\n{id} " in text


def test_ports_tell_who_declares_and_who_holds_them(mesh: Mesh) -> None:
    rows = mesh.founder.json("ports")
    assert {row["port"] for row in rows} == set(mesh.founder.ports.values())
    assert {(row["protocol"], row["origin"], row["resource"]) for row in rows} == {("tcp", "carried", "service:broker")}
    broker = mesh.founder.processes("broker")
    assert all(row["open_by"] and set(row["open_by"]) <= broker for row in rows), (rows, broker)
    text = mesh.founder.ask("ports").splitlines()
    assert len(text) == 1 + len(rows)
    broker_port = mesh.founder.ports["broker_port"]
    wanted = re.compile(rf"\*:{broker_port}/tcp +carried +service:broker +beam\.smp \(\d+\)")
    assert any(map(wanted.fullmatch, text)), text


def test_founder_sees_its_nodes(mesh: Mesh) -> None:
    seen = mesh.founder.json("control", "node", "list")
    assert (seen["parked"], seen["serving"]) == (0, True)
    assert [(node["name"], node["state"]) for node in seen["nodes"]] == [("a", "here"), ("b", "here")]
    text = mesh.founder.ask("control", "node", "list")
    assert re.search(r"^a +here ", text, re.MULTILINE)
    assert text.endswith("\n0 messages parked\n")
    shown = mesh.founder.json("control", "node", "show", "a")
    assert shown["carried_ports"] == sorted(mesh.founder.ports.values())
    assert shown["profile"]["python"]
    assert re.search(r"^node +a, here, enrolled ", mesh.founder.ask("control", "node", "show", "a"), re.MULTILINE)


def test_unknown_node_is_told_with_the_nearest(mesh: Mesh) -> None:
    for command in (("node", "show", "bb"), ("declare", "bb", "-")):
        done = mesh.founder.run("control", *command, stdin="[]")
        assert (done.returncode, done.stdout) == (1, "")
        assert 'did you mean "b"?' in done.stderr


def test_commands_of_the_founder_say_so_elsewhere(mesh: Mesh) -> None:
    for command in (("node", "list"), ("node", "show", "a"), ("declare", "b", "-"), ("token", "create", "c")):
        done = mesh.joiner.run("control", *command, stdin="[]")
        assert (done.returncode, done.stdout) == (1, "")
        assert "not the founder" in done.stderr
        assert "run this on the founder" in done.stderr


def test_toml_list_with_a_parameter_is_applied(mesh: Mesh, place: Path) -> None:
    file = mesh.founder.folder / "list.toml"
    file.write_text(
        f"""
        [params]
        greeting = "hello"
        [[resource]]
        kind = "file"
        name = "{place}/greeting"
        content = "${{param.greeting}} from ${{node.name}}, $${{x}}"
        template = true
        mode = "0600"
        owner = "nobody"
        """
    )
    told = mesh.founder.ask("control", "declare", "b", file, "--set", "greeting=good day")
    assert re.fullmatch(r"declaration \d+ for b is signed and on its way\nb has applied it\n", told)
    assert (place / "greeting").read_text() == "good day from b, ${x}"
    assert ((place / "greeting").stat().st_mode & 0o777, (place / "greeting").stat().st_uid) == (0o600, 65534)
    shown = mesh.founder.json("control", "node", "show", "b")
    assert shown["holdings"] == [f"file:{place}/greeting"]
    assert shown["wanted"] == shown["applied"] == mesh.joiner.json("status")["serial"]


def test_only_what_changed_is_touched(mesh: Mesh, place: Path) -> None:
    folder = place / "folder"
    resources: list[dict[str, object]] = [
        {"kind": "directory", "name": str(folder), "mode": "0750"},
        {"kind": "file", "name": f"{folder}/one", "content": "1"},
        {"kind": "file", "name": f"{folder}/two", "content": "2"},
        {"kind": "service", "name": "sleeper", "command": SLEEPER, "needs": [f"file:{folder}/one"]},
    ]
    told = declare(mesh, *resources)
    assert [line.split()[1:3] for line in told.splitlines() if "/4 " in line] == [
        [f"directory:{folder}", "created"],
        [f"file:{folder}/one", "created"],
        [f"file:{folder}/two", "created"],
        ["service:sleeper", "created"],
    ]
    pid = mesh.joiner.main_process("sleeper")
    before = look_of(folder)
    declare(mesh, *resources)
    assert look_of(folder) == before
    resources[2]["content"] = "two"
    told = declare(mesh, *resources)
    assert [line.split()[1:3] for line in told.splitlines() if "/4 " in line] == [[f"file:{folder}/two", "changed"]]
    assert (folder / "two").read_text() == "two"
    after = look_of(folder)
    assert {path for path in after if after[path] != before[path]} == {f"{folder}/two"}
    assert mesh.joiner.main_process("sleeper") == pid
    assert pid in mesh.joiner.processes("sleeper")
    declare(mesh, *resources[:2])
    assert not mesh.joiner.processes("sleeper")
    assert sorted(path.name for path in folder.iterdir()) == ["one"]
    empty(mesh)
    assert not folder.exists()


def test_empty_list_must_be_meant(mesh: Mesh, place: Path) -> None:
    declare(mesh, {"kind": "file", "name": f"{place}/kept", "content": ""})
    done = mesh.founder.declare("b", [])
    assert (done.returncode, done.stdout) == (1, "")
    assert "--retire" in done.stderr
    assert (place / "kept").exists()
    empty(mesh)
    assert not (place / "kept").exists()


def test_found_file_gets_its_own_back(mesh: Mesh, place: Path) -> None:
    found = place / "found"
    found.write_bytes(b"\x00mine\xff\n")
    found.chmod(0o640)
    os.chown(found, 65534, 12)
    before = look_of(found)[str(found)]
    declare(mesh, {"kind": "file", "name": str(found), "content": "ours", "mode": "0600"})
    declare(mesh, {"kind": "file", "name": str(found), "content": "ours again"})
    assert found.read_text() == "ours again"
    assert mesh.joiner.status()[f"file:{found}"]["found"]
    empty(mesh)
    after = look_of(found)[str(found)]
    assert (after[:3], after[4]) == (before[:3], before[4])
    assert os.listxattr(found) == []


def test_failure_is_told_and_the_rest_is_made(mesh: Mesh, place: Path) -> None:
    lost = f"{place}/missing/file"
    done = mesh.founder.declare(
        "b",
        [
            {"kind": "file", "name": lost, "content": ""},
            {"kind": "file", "name": f"{place}/needs", "content": "", "needs": [f"file:{lost}"]},
            {"kind": "file", "name": f"{place}/made", "content": ""},
        ],
    )
    assert (done.returncode, done.stderr) == (2, "")
    assert f"b: file:{lost} failed: {place}/missing is not there" in done.stdout
    assert f"b: file:{place}/needs failed: it needs file:{lost}, which failed" in done.stdout
    assert (place / "made").exists()
    assert set(mesh.founder.json("control", "node", "show", "b")["failed"]) == {f"file:{lost}", f"file:{place}/needs"}
    line = mesh.joiner.status()[f"file:{lost}"]
    assert (line["state"], "is not there" in line["why"]) == ("failed", True)


def test_refusal_is_told_and_changes_nothing(mesh: Mesh) -> None:
    port = mesh.founder.ports["broker_port"]
    before = mesh.founder.status()
    done = mesh.founder.declare("a", [{"kind": "service", "name": "x", "command": SLEEPER, "ports": [str(port)]}])
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"^a refused it, and changed nothing: .*{port}.*service:broker", done.stdout, re.MULTILINE)
    assert mesh.founder.status() == before
    node = mesh.founder.json("control", "node", "list")["nodes"][0]
    assert str(port) in node["refuses"]
    # What was refused is no longer wanted.
    assert mesh.founder.declare("a", [], "--retire").returncode == 0
    assert mesh.founder.json("control", "node", "list")["nodes"][0]["refuses"] is None


def test_once_ends_when_all_is_applied(mesh: Mesh, place: Path) -> None:
    assert mesh.joining.end() == 0
    try:
        assert mesh.joiner.run("up", "--once").returncode == 0
        file = {"kind": "file", "name": f"{place}/file", "content": "waited"}
        assert mesh.founder.declare("b", [file], "--detach").returncode == 0
        done = mesh.joiner.run("up", "--once")
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        assert (place / "file").read_text() == "waited"
        lost = {"kind": "file", "name": f"{place}/missing/file", "content": ""}
        assert mesh.founder.declare("b", [file, lost], "--detach").returncode == 0
        assert mesh.joiner.run("up", "--once").returncode == 2
        assert mesh.founder.json("control", "node", "list")["nodes"][1]["failed"] == 1
    finally:
        mesh.joining = mesh.joiner.back()
    assert mesh.joining.lines[0] == "b is back (joiner)"


def test_running_agent_keeps_others_and_reset_out(mesh: Mesh) -> None:
    before = look_of(mesh.joiner.state / "identity", mesh.joiner.state / "secrets")
    for command in (("up",), ("up", "--once"), ("reset", "--yes")):
        done = mesh.joiner.run(*command)
        assert done.returncode == 1
        assert f"(process {mesh.joining.process.pid})" in done.stderr
        assert done.stderr.count("\n") == 1
    assert look_of(mesh.joiner.state / "identity", mesh.joiner.state / "secrets") == before
    assert mesh.joining.process.poll() is None


def test_bundle_is_shown_and_verified(mesh: Mesh) -> None:
    shown = mesh.founder.json("bundle", "show")
    assert shown["name"] == "native"
    assert shown["resources"][0]["name"] == "openssl"
    text = mesh.founder.ask("bundle", "show")
    assert text.startswith(f"bundle native, 14 resources, 0 blobs, digest {shown['digest']}\n")
    assert f"digest {shown['digest']}" in mesh.founder.ask("bundle", "verify")


ALONE = """
name = "alone"
[params]
place = "/nowhere"
word = "first"
port = 1
[[resource]]
kind = "directory"
name = "${param.place}"
[[resource]]
kind = "file"
name = "${param.place}/file"
content = "${param.word}\\n"
template = true
[[resource]]
kind = "file"
name = "${param.place}/blob"
blob = "some.bin"
[[resource]]
kind = "service"
name = "sleeper"
command = ["/bin/sh", "-c", "exec sleep 100000"]
ports = ["127.0.0.1:${param.port}"]
[[resource]]
kind = "reserved"
name = "ssh"
ports = ["22"]
"""


def alone(machine: MakeMachine, name: str = "alone") -> Machine:
    """A machine whose file carries a bundle without a mesh."""
    made = machine(name, ALONE, {"some.bin": b"\x00" * 100_000})
    made.params = {"place": str(made.folder / "place"), "port": str(made.ports["broker_port"])}
    return made


def test_bundle_without_a_mesh_is_raised_and_kept(machine: MakeMachine) -> None:
    one = alone(machine)
    agent = one.up("--name", "one", *one.settings)
    agent.wait_for("there is no mesh to join; what is raised is kept so")
    assert agent.lines[0] == "no token was given and this bundle carries no mesh: one raises it and keeps it so"
    assert (one.folder / "place" / "blob").read_bytes() == b"\x00" * 100_000
    pid = one.main_process("sleeper")
    assert "not the founder" in one.run("control", "node", "list").stderr
    assert agent.end() == 0
    assert one.processes() == {pid}
    done = one.run("up", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    steps = [line for line in done.stdout.splitlines() if "/5 " in line]
    assert len(steps) == 5
    assert all("  kept  " in step for step in steps), steps
    assert one.processes() == {pid}
    listed = one.ask("reset", "--dry-run")
    assert "service:sleeper (carried, made)" in listed
    assert one.processes() == {pid}
    told = one.ask("reset", "--yes")
    assert f"{one.state} is gone" in told
    assert not one.processes()
    assert not one.control_groups()
    assert not (one.folder / "place").exists()
    assert not one.state.exists()


def test_settings_and_name_are_remembered(machine: MakeMachine) -> None:
    one = alone(machine)
    once = ("up", "--once")
    assert one.run(*once, "--name", "one", *one.settings, "--set", "word=second").returncode == 0
    content = one.folder / "place" / "file"
    assert content.read_text() == "second\n"
    assert one.run(*once).returncode == 0
    assert content.read_text() == "second\n"
    assert one.run(*once, "--set", "word=third").returncode == 0
    assert content.read_text() == "third\n"
    done = one.run(*once, "--name", "two")
    assert (done.returncode, "called one" in done.stderr) == (1, True)
    assert one.json("status")["node"] == "one"


def test_state_may_be_named_in_every_way(machine: MakeMachine) -> None:
    one = alone(machine)
    (one.folder / "a folder").mkdir()
    one.state = one.state.rename(one.folder / "a folder" / "with state")
    nothing = {"AGENT_STATE": ""}
    options = ("--once", "--name", "one", *one.settings)
    done = one.run("up", *options, "--state", "with state", environment=nothing, cwd=one.folder / "a folder")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    for before, after, environment in (
        (["--state", "a folder/with state"], [], nothing),
        ([], ["--state=./a folder/with state"], nothing),
        ([], [], {"AGENT_STATE": "a folder/../a folder/with state"}),
        (["--state", "elsewhere"], ["--state", str(one.state)], nothing),
    ):
        done = one.run(*before, "status", "-o", "json", *after, environment=environment)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["node"] == "one"
    # The last of several counts, and nothing was unpacked or made by way of the others.
    assert sorted(path.name for path in one.folder.iterdir()) == ["a folder", "place"]
    assert one.run("reset", "--yes", environment={"AGENT_STATE": str(one.state)}).returncode == 0
    assert sorted(path.name for path in (one.folder / "a folder").iterdir()) == []


def test_build_carries_the_bundle_that_it_is_given(machine: MakeMachine, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    text = 'name = "mine"\n[[resource]]\nkind = "reserved"\nname = "ssh"\nports = ["22"]\n'
    (tmp_path / "mine" / "bundle.toml").write_text(text)
    subprocess.run(
        [ROOT / "build.sh", "--bundle", "mine", "-o", "out/agent"], cwd=tmp_path, check=True, capture_output=True
    )
    one = machine("mine")
    one.file = tmp_path / "out" / "agent"
    assert one.ask("bundle", "show").startswith("bundle mine, 1 resources, 0 blobs")
    assert one.run("up", "--once", "--name", "x").returncode == 0


def test_printing_to_nobody_ends_nothing(machine: MakeMachine) -> None:
    one = alone(machine)
    words = " ".join(one.settings)
    for reader in ("head -1", "true"):
        done = subprocess.run(
            ["/bin/sh", "-c", f'"$0" up --once --name one {words} | {reader}', one.file],
            env=one.environment(),
            capture_output=True,
            text=True,
            timeout=LONG,
        )
        assert done.stderr == ""
    wait_until(lambda: one.json("status")["agent"] is None, LONG)
    assert {line["state"] for line in one.status().values()} == {"as declared"}
    for command in ("bundle show", "bundle show -o json", "status", "ports"):
        done = subprocess.run(
            ["/bin/sh", "-c", f'"$0" {command} | head -1; "$0" {command} >&-', one.file],
            env=one.environment(),
            capture_output=True,
            text=True,
            timeout=LONG,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
