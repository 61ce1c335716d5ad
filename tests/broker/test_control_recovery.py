"""A machine whose ledger is gone, its identity not: what the mesh knows of it brings everything back."""

from __future__ import annotations

import shutil

import pytest

from agent.token import parse_token
from tests.broker.nodes import SOON, mesh_of
from tests.broker.rabbit import wait_until


@pytest.fixture
def mesh(rabbit, ground):
    with mesh_of(rabbit, ground) as mesh:
        yield mesh


def lose_ledger(machine):
    for path in machine.state.glob("ledger.db*"):
        path.unlink()


def test_without_its_ledger_a_node_finds_its_own_and_touches_nothing_else(mesh):
    machine, agent = mesh.joined("a")
    founder = mesh.founder
    targets = machine.targets
    (targets / "found").write_text("what was here before")
    first = founder.declare_list(
        "a",
        {"kind": "directory", "name": str(targets / "folder")},
        machine.a_file("folder/inside"),
        machine.a_file("kept"),
        machine.a_file("dropped"),
        machine.a_file("found"),
        machine.a_file("made-foreign"),
    )
    detail = founder.wait_for_applied("a", first)
    assert len(detail.holdings) == 6
    agent.kill()
    lose_ledger(machine)
    (targets / "made-foreign").unlink()
    (targets / "made-foreign").write_text("another's, without our mark")
    (targets / "foreign").write_text("another's")
    kept = (targets / "kept").stat()
    second = founder.declare_list("a", machine.a_file("kept"))
    machine.linked()
    detail = founder.wait_for_applied("a", second)
    wait_until(lambda: founder.detail("a").holdings == (machine.id("kept"),), SOON, lambda: str(founder.detail("a")))
    assert not founder.detail("a").failures
    assert {path.name: path.read_text() for path in targets.iterdir()} == {
        "kept": "x",
        "found": "what was here before",
        "made-foreign": "another's, without our mark",
        "foreign": "another's",
    }
    after = (targets / "kept").stat()
    assert (after.st_ino, after.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)


def test_the_wanted_declaration_comes_again_by_itself(mesh):
    machine, agent = mesh.joined("a")
    founder = mesh.founder
    first = founder.declare_list("a", machine.a_file("one"), machine.a_file("two"))
    founder.wait_for_applied("a", first)
    second = founder.declare_list("a", machine.a_file("two"))
    founder.wait_for_applied("a", second)
    agent.kill()
    lose_ledger(machine)
    machine.linked()
    founder.wait_for_applied("a", second)
    assert founder.detail("a").holdings == (machine.id("two"),)
    assert [path.name for path in machine.targets.iterdir()] == ["two"]
    assert founder.detail("a").row.wanted == second


def test_a_reinstalled_machine_takes_over_what_the_old_one_was_to_hold(mesh):
    machine, agent = mesh.joined("a")
    founder = mesh.founder
    first = founder.declare_list("a", machine.a_file("one"), machine.a_file("two"))
    founder.wait_for_applied("a", first)
    second = founder.declare_list("a", machine.a_file("two"))
    founder.wait_for_applied("a", second)
    before = founder.detail("a").public_key
    agent.kill()
    shutil.rmtree(machine.state)
    (machine.targets / "two").unlink()
    asked = founder.ask("token", "create", "a")
    assert asked.returncode == 1
    assert "--replace" in asked.stderr
    asked = founder.ask("token", "create", "a", "--replace", "--now")
    assert asked.returncode == 0, asked.stderr
    machine.linked(parse_token(asked.stdout.strip()))
    detail = founder.wait_for_applied("a", second)
    assert detail.public_key != before
    assert detail.holdings == (machine.id("two"),)
    assert [path.name for path in machine.targets.iterdir()] == ["two"]


def test_the_same_machine_joins_again_and_goes_on(mesh):
    machine, agent = mesh.joined("a")
    founder = mesh.founder
    serial = founder.declare_list("a", machine.a_file("one"))
    before = founder.wait_for_applied("a", serial)
    assert agent.end() == 0
    made = (machine.targets / "one").stat()
    machine.linked(parse_token(founder.ask("token", "create", "a", "--replace").stdout.strip()))
    detail = founder.wait_for("a", lambda detail: detail.enrolled != before.enrolled and detail.row.applied == serial)
    assert (detail.public_key, detail.holdings) == (before.public_key, before.holdings)
    assert (machine.targets / "one").stat().st_ino == made.st_ino
    wait_until(lambda: "join.a" not in mesh.accounts(), SOON)
