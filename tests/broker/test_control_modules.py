"""Modules assigned to nodes over a real broker: ports, references, roll-outs, going back; and the commands for it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.control.declaring import Applied, Declared, Waits, items_of
from agent.control.modules import Module, read_module
from agent.control.store import open_store
from agent.errors import Refused
from agent.fields import Fields
from agent.host.machine import primary_address
from tests.broker.nodes import ROOT, Machine, Mesh, mesh_of
from tests.broker.plane import Node, Plane, files, serving
from tests.broker.rabbit import Rabbit

DB = {
    "name": "db",
    "ports": {"sql": "tcp"},
    "resource": [{"kind": "reserved", "name": "sql", "ports": ["${port.sql}"]}],
}
WEB = {
    "name": "web",
    "params": {"greeting": "hello"},
    "ports": {"http": "80/tcp"},
    "resource": [
        {"kind": "reserved", "name": "http", "ports": ["${port.http}"]},
        {
            "kind": "file",
            "name": "/srv/${assignment.name}.conf",
            "template": True,
            "content": "${param.greeting} ${node.name} ${address.b}:${port.b.db.sql}",
        },
    ],
}


def module(document: Mapping[str, Any]) -> Module:
    return read_module(Fields(document))


@pytest.fixture
def plane(rabbit: Rabbit, ground: Path) -> Iterator[Plane]:
    with serving(rabbit, ground) as plane:
        with plane.control() as control:
            control.arranging.add_module(module(DB))
            control.arranging.add_module(module(WEB))
        yield plane


@contextmanager
def reported(plane: Plane, name: str, *carried: int, address: str = "10.0.0.1") -> Iterator[Node]:
    """A node that has joined, at this address, and said what it carries."""
    with enrolled(plane, name, address) as node:
        node.report(0, carried=list(carried))
        plane.wait_for(name, lambda detail: detail.row.applied == 0)
        yield node


def enrolled(plane: Plane, name: str, address: str) -> Node:
    with plane.newcomer(name) as newcomer:
        return newcomer.node(newcomer.enrol(newcomer.request(profile={"address": address})))


def ids(says: Mapping[str, Any]) -> list[str]:
    return [f"{item['kind']}:{item['name']}" for item in says["resources"]]


def apply(node: Node) -> dict[str, Any]:
    """Take the next new declaration and report that it is true; what it said.

    One that was sent while an older one was being reported may come twice.
    """
    declaration = node.declaration()
    while declaration.serial <= node.newest:
        declaration = node.declaration()
    node.newest = declaration.serial
    node.report(declaration.serial, applied=ids(declaration.says))
    return declaration.says


@contextmanager
def answering(*nodes: tuple[Node, Callable[[dict[str, Any]], Mapping[str, str]]]) -> Iterator[list[str]]:
    """Have nodes report what comes to them, one declaration each, with what fails of it. Who did, in order."""
    done: list[str] = []

    def run(node: Node, fails: Callable[[dict[str, Any]], Mapping[str, str]]) -> None:
        with Node(node.rabbit, node.name, node.password, node.key) as speaker:
            declaration = speaker.declaration()
            done.append(speaker.name)
            failed = dict(fails(declaration.says))
            speaker.report(declaration.serial, applied=ids(declaration.says), failed=failed)

    threads = [threading.Thread(target=run, args=one) for one in nodes]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        for thread in threads:
            thread.join(30)


def test_an_assignment_arrives_with_ports_that_the_node_does_not_carry(plane: Plane) -> None:
    with reported(plane, "b", 20000, 20001) as node, plane.control() as control:
        declared = control.arranging.assign("db", "b")
        assert declared == Declared("b", 1, has_spoken=True)
        says = apply(node)
        assert says["resources"] == [{"kind": "reserved", "name": "db-sql", "ports": ["20002"]}]
        assert control.wait(declared, 20) == Applied({})
        control.declare("b", files("/etc/x"), {})
        assert ids(apply(node)) == ["file:/etc/x", "reserved:db-sql"]


def test_a_port_is_given_again_only_after_its_removal_was_reported(plane: Plane) -> None:
    def assigned(called: str) -> list[str]:
        control.arranging.assign("db", "b", called)
        return [str(item["ports"][0]) for item in apply(node)["resources"] if item["name"] == f"{called}-sql"]

    with reported(plane, "b") as node, plane.control() as control:
        assert assigned("one") == ["20000"]
        plane.wait_for("b", lambda detail: detail.holdings == ("reserved:one-sql",))
        control.arranging.unassign("one", "b")
        assert assigned_while_held(control, node) == "20001"
        plane.wait_for("b", lambda detail: detail.row.applied == 3)
        assert assigned("three") == ["20000"]


def assigned_while_held(control: Any, node: Node) -> str:
    """The port of an assignment that is made before the node has said anything of the removal."""
    removal = node.declaration()
    assert (removal.says["resources"], removal.says["retire"]) == ([], True)
    control.arranging.assign("db", "b", "two")
    return str(apply(node)["resources"][0]["ports"][0])


def test_assigning_to_a_node_that_never_reported_waits_for_its_first_report(plane: Plane) -> None:
    with enrolled(plane, "b", "10.0.0.2") as node, plane.control() as control:
        assert control.arranging.assign("db", "b") == Waits("b")
        node.alive()
        plane.wait_for("b", lambda detail: detail.row.last_seen is not None)
        assert node.has_nothing()
        node.report(0, carried=[20000])
        assert apply(node)["resources"][0]["ports"] == ["20001"]
        plane.wait_for("b", lambda detail: detail.holdings == ("reserved:db-sql",))


def test_what_a_node_comes_to_carry_is_taken_from_its_assignments(plane: Plane) -> None:
    with reported(plane, "b") as node, plane.control() as control:
        control.arranging.assign("db", "b")
        assert apply(node)["resources"][0]["ports"] == ["20000"]
        node.report(1, applied=["reserved:db-sql"], carried=[20000])
        assert apply(node)["resources"][0]["ports"] == ["20001"]


def test_one_nodes_port_and_address_reach_another_and_change_there(plane: Plane) -> None:
    with reported(plane, "b", address="10.0.0.2") as b, reported(plane, "a") as a, plane.control() as control:
        with pytest.raises(Refused, match=r'port\.b\.db\.sql.*nothing called "db" is assigned to b'):
            control.arranging.assign("web", "a")
        control.arranging.assign("db", "b")
        apply(b)
        control.arranging.assign("web", "a", "shop", {"greeting": "hi"})
        assert apply(a)["resources"][1]["content"] == "hi a 10.0.0.2:20000"
        b.report(1, applied=["reserved:db-sql"], carried=[20000])
        assert apply(a)["resources"][1]["content"] == "hi a 10.0.0.2:20001"
        apply(b)
        with pytest.raises(Refused, match="a refers to b"):
            control.arranging.unassign("db", "b")
        with enrolled(plane, "b", "10.9.9.9") as moved:  # another machine has taken its place
            assert apply(a)["resources"][1]["content"] == "hi a 10.9.9.9:20001"
            moved.report(0, carried=[20001])
            assert apply(moved)["resources"][0]["ports"] == ["20000"]
            assert apply(a)["resources"][1]["content"] == "hi a 10.9.9.9:20000"


def test_a_roll_out_stops_at_the_first_that_fails_and_goes_on_from_there(plane: Plane) -> None:
    newer = {**DB, "resource": [*DB["resource"], {"kind": "file", "name": "/etc/db", "content": "2"}]}
    with reported(plane, "a") as a, reported(plane, "b") as b, plane.control() as control:
        for node in (a, b):
            control.arranging.assign("db", node.name)
            apply(node)
        control.arranging.add_module(module(newer))
        assert a.has_nothing()
        with answering((a, lambda _: {"file:/etc/db": "no room"})) as done:
            steps = list(control.arranging.roll("db", timeout=20))
        assert [(step.declared.node, step.outcome) for step in steps] == [("a", Applied({"file:/etc/db": "no room"}))]
        assert (done, b.has_nothing()) == (["a"], True)
        a.report(2, applied=["reserved:db-sql", "file:/etc/db"])  # it tried again, and there was room
        plane.wait_for("a", lambda detail: not detail.failures)
        with answering((b, lambda _: {})) as done:
            assert [step.declared.node for step in control.arranging.roll("db", timeout=20)] == ["b"]
        assert done == ["b"]


def test_what_is_assigned_while_nobody_serves_is_sent_later(rabbit: Rabbit, ground: Path) -> None:
    plane = Plane(rabbit, ground)
    plane.start()
    try:
        with reported(plane, "b") as node:
            plane.stop()
            with plane.control() as control:
                control.arranging.add_module(module(DB))
                control.arranging.assign("db", "b")
            assert node.has_nothing()
            plane.start()
            assert ids(apply(node)) == ["reserved:db-sql"]
    finally:
        plane.stop()


def test_an_assignment_and_its_declaration_are_there_both_or_neither_whenever_the_command_is_killed(
    plane: Plane,
) -> None:
    with reported(plane, "b"), plane.control() as control:
        for at in range(8):
            words = ["control", "assign", "db", "b", "--as", f"db{at}", "--detach", "--state", str(plane.state)]
            process = subprocess.Popen([sys.executable, "-m", "agent", *words], cwd=ROOT, stdout=subprocess.DEVNULL)
            try:
                process.wait(0.1 * (at + 1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            arranged = {row.assignment: [f"{row.port.number}"] for row in control.arranging.ports()}
            with closing(open_store(plane.state)) as store:
                wanted = store.declarations.wanted("b")
                assert {one.name for one in store.arrangements.get("b").assignments} == arranged.keys()
            items = items_of(wanted) if wanted else ()
            assert {str(item["name"]).removesuffix("-sql"): item["ports"] for item in items} == arranged


def test_a_node_that_others_refer_to_is_not_removed(plane: Plane) -> None:
    with reported(plane, "b") as b, reported(plane, "a") as a, plane.control() as control:
        control.arranging.assign("db", "b")
        apply(b)
        control.arranging.assign("web", "a")
        apply(a)
        with pytest.raises(Refused, match="What is arranged for a refers to b"):
            control.remove_node("b")
        control.arranging.unassign("web", "a")
        control.remove_node("b")
        assert not plane.knows("b")
        assert {row.node for row in control.arranging.ports()} == {"a"}


# The commands, and a machine that does what it is told


@pytest.fixture
def mesh(rabbit: Rabbit, ground: Path) -> Iterator[Mesh]:
    with mesh_of(rabbit, ground) as mesh:
        yield mesh


def site(machine: Machine, content: str = "hello") -> str:
    """A module in TOML, whose files lie where this machine's may."""
    return f"""
name = "site"
[params]
greeting = "{content}"
[ports]
http = "80/tcp"
[[resource]]
kind = "reserved"
name = "http"
ports = ["${{port.http}}"]
[[resource]]
kind = "file"
name = "{machine.targets}/${{assignment.name}}"
needs = ["reserved:http"]
template = true
content = "${{param.greeting}} from ${{node.name}} at ${{port.http}}\\n"
"""


def test_the_commands_from_a_module_to_a_file_and_back(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, _ = mesh.joined("b")
    file = machine.targets / "site"

    def ask(*words: str, stdin: str = "", code: int = 0) -> list[str]:
        done = founder.ask(*words, stdin=stdin)
        assert (done.returncode, done.stderr) == (code, ""), done.stdout + done.stderr
        return done.stdout.splitlines()

    assert ask("module", "add", "-", stdin=site(machine)) == ["version 1 of the module site is stored"]
    assert ask("assign", "site", "b", "--set", "greeting=hi") == [
        "port http of site is 20000/tcp on b",
        "declaration 1 for b is signed and on its way",
        "b has applied it",
    ]
    assert file.read_text() == "hi from b at 20000\n"
    assert ask("port", "list")[1].split() == ["b", "20000/tcp", "site", "http"]
    assert ask("plan", "b", "--exit-code") == ["keep    reserved:site-http", f"keep    file:{file}"]
    wanted = [{"kind": "file", "name": str(machine.targets / "own"), "content": "x"}]
    planned = ask("plan", "b", "-", "--exit-code", "-o", "json", stdin=json.dumps(wanted), code=2)
    assert [line["change"] for line in json.loads("\n".join(planned))["resources"]] == ["create", "keep", "keep"]

    stored = ask("module", "add", "-", stdin=site(machine).replace("at $", "on $"))
    assert stored == [
        "version 2 of the module site is stored",
        "nobody is moved to it: `agent control module roll site` does that",
    ]
    assert file.read_text() == "hi from b at 20000\n"
    assert ask("module", "roll", "site") == ["declaration 2 for b is signed and on its way", "b has applied it"]
    assert file.read_text() == "hi from b on 20000\n"
    assert ask("module", "roll", "site") == ["every node is at version 2 already"]
    assert ask("rollback", "b") == ["declaration 3 for b is signed and on its way", "b has applied it"]
    assert file.read_text() == "hi from b at 20000\n"
    assert ask("module", "list")[1].split() == ["site", "2", "site", "on", "b", "(1)"]
    shown = json.loads("\n".join(ask("module", "show", "site", "-o", "json")))
    assert (shown["version"], shown["document"]["ports"]) == (2, {"http": "80/tcp"})

    with enrolled(founder, "c", "10.0.0.3"):
        assert ask("assign", "site", "c") == [
            "c has never reported: this waits, and is declared when that node first does"
        ]
        assert ask("unassign", "site", "c") == ["nothing was declared to c, so there is nothing to take away"]

    refused = founder.ask("module", "remove", "site")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "agent: The module site is assigned (site on b); unassign it first.\n"
    assert ask("unassign", "site", "b") == ["declaration 4 for b is signed and on its way", "b has applied it"]
    assert list(machine.targets.iterdir()) == []
    assert ask("module", "remove", "site") == ["the module site is removed"]


def test_a_node_that_has_another_address_by_now_says_so(mesh: Mesh) -> None:
    founder, here = mesh.founder, primary_address()
    assert here
    b, _ = mesh.joined("b")
    with founder.control() as control:
        # Where it was when it last said so.
        control._store._database.execute("UPDATE node SET profile = ?", (json.dumps({"address": "198.51.100.7"}),))
    serial = founder.declare_list("b", b.a_file("own", "at ${address.b}", template=True))
    # Its report of that says where it is now, from which another one follows.
    founder.wait_for_applied("b", serial + 1)
    assert (b.targets / "own").read_text() == f"at {here}"
    assert founder.detail("b").profile["address"] == here


def test_a_pinned_port_that_the_node_carries_is_refused_there_with_its_holders_name(mesh: Mesh) -> None:
    mesh.joined("b")
    pinned = {"name": "pinned", "resource": [{"kind": "reserved", "name": "x", "ports": ["4022"]}]}
    assert mesh.founder.ask("module", "add", "-", stdin=json.dumps(pinned)).returncode == 0
    done = mesh.founder.ask("assign", "pinned", "b")
    assert done.returncode == 1
    assert "b refused it, and changed nothing" in done.stdout
    assert "reserved:own" in done.stdout
    assert mesh.founder.ask("unassign", "pinned", "b").returncode == 0


@pytest.mark.parametrize(
    ("words", "stdin", "why"),
    [
        (("assign", "sites", "b"), "", 'There is no module "sites"'),
        (("assign", "site", "bb"), "", 'There is no node "bb"; did you mean "b"?'),
        (("assign", "site", "b", "--set", "greting=x"), "", 'no parameter "greting" here; did you mean "greeting"?'),
        (("unassign", "site", "b"), "", 'Nothing called "site" is assigned to b.'),
        (("rollback", "b"), "", "b was never declared anything else"),
        (("module", "show", "sits"), "", 'There is no module "sits"; did you mean "site"?'),
        (("module", "roll", "site"), "", "is not assigned to any node"),
        (("module", "add", "-"), 'name = "x"\n[ports]\na = "tcp"\na = "udp"\n', "neither TOML nor JSON"),
        (("module", "add", "-"), '{"name": "x", "ports": {"a": "tcp", "a": "udp"}}', 'the key "a" stands twice'),
        (("module", "add", "-"), 'name = "x"\n[[resource]]\nkind = "file"\nname = "x"\n', "resource[0]"),
        (("port", "range", "80-90"), "", "no range of ports"),
    ],
)
def test_bad_input_is_a_sentence_and_changes_nothing(
    mesh_of_one: Mesh, words: tuple[str, ...], stdin: str, why: str
) -> None:
    done = mesh_of_one.founder.ask(*words, stdin=stdin)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("agent: ")
    assert done.stderr.count("\n") == 1
    assert why in done.stderr
    assert mesh_of_one.founder.detail("b").row.wanted == 0


@pytest.fixture(scope="module")
def mesh_of_one(rabbit_process: Rabbit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh with the node b and the module site, which nobody changes."""
    with mesh_of(rabbit_process, tmp_path_factory.mktemp("one")) as mesh:
        machine, _ = mesh.joined("b")
        assert mesh.founder.ask("module", "add", "-", stdin=site(machine)).returncode == 0
        yield mesh
    rabbit_process.clear()
