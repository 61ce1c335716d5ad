"""The bundle `containers`, carried whole with its images in one file, where there is no registry and no such image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import memory
from tests.broker.rabbit import wait_until
from tests.built.lab import LONG, SHORT, Machine
from tests.engines import images
from tests.engines.podman import PATH, Podman
from tests.engines.shop import Engine

# The first test waits for the images to be made.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "agent/bundles/containers"
BROKER, CONTROL = "docker.io/library/rabbitmq:3.13-management", "docker.io/library/python:3.13-slim"
# Inits that end at once when they are asked to.
SLEEP = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"]


@pytest.fixture(scope="module")
def carrier(built_file: Path, podman_store: Podman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the bundle and both of its images, which the engine that they came from has no more."""
    folder = tmp_path_factory.mktemp("carrier")
    podman_store.import_image(images.debian(["rabbitmq-server"]), BROKER)
    podman_store.import_image(images.debian(["python3"]), CONTROL)
    words = ["bundle", "pack", BUNDLE, "--image", BROKER, "--image", CONTROL, "-o", folder / "agent"]
    environment = {"PATH": PATH, "AGENT_STATE": str(folder / "state"), **podman_store.environment}
    done, most = memory.run([built_file, *words], environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    podman_store.run("rmi", BROKER, CONTROL)
    assert (folder / "agent").stat().st_size > 2 * memory.BOUND
    assert 0 < most < memory.BOUND
    return folder / "agent"


@pytest.fixture
def machine(carrier: Path, engine: Engine, tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "nothing").mkdir()
    made = Machine(carrier, "a", tmp_path / "nothing")
    made.variables.update(engine.environment)
    made.params["engine"] = engine.name
    yield made
    made.remove()


def container(name: str, **more: Any) -> dict[str, Any]:
    item = {"kind": "container", "name": name, "image": "localhost/base:1", "command": SLEEP, "stop_timeout": 5}
    return {**item, **more}


def started(engine: Engine, *names: str) -> list[str]:
    """When each was started last, and which it is."""
    return [engine.run("container", "inspect", "--format", "{{.State.StartedAt}} {{.Id}}", name) for name in names]


def names(engine: Engine) -> set[str]:
    return set(engine.run("ps", "--all", "--format", "{{.Names}}").split())


def is_running(engine: Engine, name: str) -> bool:
    return engine.run("container", "inspect", "--format", "{{.State.Running}}", name) == "true"


def standing(machine: Machine) -> tuple[bool, dict[str, str]]:
    """Whether the control plane serves, and what it says of each node."""
    told = machine.json("control", "node", "list")
    return told["serving"], {node["name"]: node["state"] for node in told["nodes"]}


def assert_nothing_to_do(machine: Machine, *declared: dict[str, Any]) -> None:
    """Neither with what is carried nor with what was declared."""
    carried = machine.run("plan", "--exit-code")
    assert carried.returncode == 0, carried.stdout + carried.stderr
    assigned = machine.run("control", "plan", "a", "-", "--exit-code", stdin=json.dumps(declared))
    assert assigned.returncode == 0, assigned.stdout + assigned.stderr


def declare(machine: Machine, *items: dict[str, Any]) -> None:
    done = machine.declare("a", list(items))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mesh_in_containers(machine: Machine, engine: Engine, tmp_path: Path) -> None:
    assert [line.split()[0] for line in machine.ask("bundle", "show").splitlines()[-2:]] == [CONTROL, BROKER]
    engine.run("run", "--detach", "--name", "theirs", "localhost/base:1", *SLEEP)
    foreign = started(engine, "theirs")

    agent = machine.found("--drift-interval", "2")
    # Both archives went through it.
    assert 0 < memory.peak(agent.process.pid) < memory.BOUND
    broker = started(engine, "mesh-broker")
    assert standing(machine) == (True, {"a": "here"})

    declare(machine, container("one"), container("two"))
    one, two = started(engine, "one", "two")
    declare(machine, container("one", environment={"NEW": "1"}), container("two"))
    assert started(engine, "one") != [one]
    assert started(engine, "two") == [two]
    assert_nothing_to_do(machine, container("one", environment={"NEW": "1"}), container("two"))
    declare(machine, container("two"))
    assert names(engine) == {"mesh-broker", "mesh-control", "theirs", "two"}

    for name in ("two", "mesh-control"):
        engine.run("kill", name)
        wait_until(lambda name=name: is_running(engine, name), SHORT)
    wait_until(lambda: standing(machine) == (True, {"a": "here"}), SHORT)
    assert started(engine, "two") != [two]
    assert started(engine, "mesh-broker") == broker
    assert_nothing_to_do(machine, container("two"))

    # What is typed here reaches a control plane that runs in there.
    assert machine.ask("control", "token", "create", "b").strip()
    links = agent.output.count("waiting for declarations")
    early = machine.run("control", "cert", "renew")
    assert (early.returncode, "the token for b is older" in early.stderr) == (2, True), early.stdout + early.stderr
    machine.ask("control", "token", "revoke", "b")
    machine.ask("control", "cert", "renew")
    wait_until(lambda: agent.output.count("waiting for declarations") > links, LONG, lambda: agent.output)
    assert started(engine, "mesh-broker") != broker
    wait_until(lambda: machine.run("plan", "--exit-code").returncode == 0, SHORT, lambda: agent.output)
    wait_until(lambda: standing(machine) == (True, {"a": "here"}), SHORT)
    machine.ask("control", "backup", tmp_path / "backup")
    assert_nothing_to_do(machine, container("two"))

    assert agent.end() == 0
    assert is_running(engine, "mesh-broker")
    assert is_running(engine, "two")
    machine.ask("reset", "--yes")
    assert names(engine) == {"theirs"}
    assert started(engine, "theirs") == foreign
    assert engine.run("images", "--format", "{{.Repository}}:{{.Tag}}").split() == ["localhost/base:1"]
    assert sorted(path.name for path in machine.folder.iterdir() if not path.name.startswith("said")) == []
    # Whom the broker's certificate belongs to is no user of the machine; a backup brings it back all the same.
    assert machine.ask("control", "restore", tmp_path / "backup")
    assert (machine.state / "secrets/59671/broker.key").exists()
