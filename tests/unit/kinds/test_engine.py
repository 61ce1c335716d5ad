"""Which engine is used, and how what it says reads."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.host.commands import Finished
from agent.kinds.engine import Engines, complaint
from agent.kinds.image import parse_loaded
from agent.kinds.kind import Machine
from agent.resources import Context, EngineName, parse_resource


def having(names: Collection[str]) -> Engines:
    return Engines({}, find=lambda name: f"/usr/bin/{name}" if name in names else None)


@pytest.fixture
def machine(ground: Path) -> Machine:
    (ground / "state").mkdir(mode=0o711)
    return Machine(ground / "state", b"key", lambda name: iter(()))


def test_podman_is_used_where_both_are_unless_the_list_says(machine: Machine) -> None:
    both = having({"podman", "docker"})
    assert both.choose(None, machine).name is EngineName.PODMAN
    assert both.choose(EngineName.DOCKER, machine).name is EngineName.DOCKER
    assert having({"docker"}).choose(None, machine).name is EngineName.DOCKER


def test_what_was_used_stays_while_it_is_there(machine: Machine) -> None:
    docker, both = having({"docker"}), having({"podman", "docker"})
    docker.remember(docker.choose(None, machine), machine)
    assert both.choose(None, machine).name is EngineName.DOCKER
    both.remember(both.choose(EngineName.PODMAN, machine), machine)
    assert both.choose(None, machine).name is EngineName.DOCKER
    podman = having({"podman"})
    podman.remember(podman.choose(None, machine), machine)
    assert both.choose(None, machine).name is EngineName.PODMAN


def test_one_that_is_not_here_is_said(machine: Machine) -> None:
    with pytest.raises(Unavailable, match=r"^This machine has no container engine; install podman or docker"):
        having(()).choose(None, machine)
    with pytest.raises(Unavailable, match=r"^This machine has no docker; install it, or leave out the engine"):
        having({"podman"}).choose(EngineName.DOCKER, machine)


def test_one_that_a_package_may_bring_is_waited_for(machine: Machine) -> None:
    package = parse_resource({"kind": "package", "name": "podman"}, "resource[0]", Context(machine.state))
    assert having(()).check(None, machine, [package]) is None
    with pytest.raises(Unavailable):
        having(()).check(None, machine, [])


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("Error: inspecting object: no such container x\n", "inspecting object: no such container x"),
        (
            "Error response from daemon: driver failed: address already in use\nError: failed to start containers: x\n",
            "driver failed: address already in use",
        ),
        ("Trying to pull x...\ntime=now level=warning msg=retrying\nError: no\n", "no"),
        ("open /x/blobs/json: no such file or directory\n", "open /x/blobs/json: no such file or directory"),
        ("\x1b[31mCannot connect\x07\n\n", "[31mCannot connect"),
        ("", "it said nothing"),
    ],
)
def test_the_line_that_says_why(said: str, line: str) -> None:
    assert complaint(Finished(("podman",), 125, b"", said.encode())) == line


def test_what_is_said_of_an_error_wins_over_what_is_said_besides() -> None:
    assert complaint(Finished(("docker",), 1, b"Context: default\n", b"Cannot connect\n")) == "Cannot connect"


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("Loaded image: localhost/base:1\n", ("localhost/base:1",)),
        ("Getting image source signatures\nCopying blob x\nLoaded image: a/b:1\n", ("a/b:1",)),
        ("Loaded image: sha256:1250\n", ("sha256:1250",)),
        ("Loaded image ID: sha256:1250\n", ("sha256:1250",)),
        ("Loaded image(s): a:1,b:2\n", ("a:1", "b:2")),
        ("Loaded image: a:1\nLoaded image: b:2\n", ("a:1", "b:2")),
        ("", ()),
    ],
)
def test_what_was_loaded(said: str, names: tuple[str, ...]) -> None:
    assert parse_loaded(said) == names
