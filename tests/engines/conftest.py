"""Both engines, each started once; each test finds them empty but for the image `base`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.docker import Docker
from tests.engines.images import busybox
from tests.engines.podman import Podman
from tests.engines.shop import Engine, Shop

BASE = "localhost/base:1"


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system of busybox, as a tar."""
    return busybox(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def podman_store(root: Path) -> Iterator[Podman]:
    podman = Podman()
    try:
        podman.import_image(root, BASE)
        yield podman
    finally:
        podman.close()


@pytest.fixture(scope="session")
def docker_daemon(root: Path) -> Iterator[Docker]:
    docker = Docker()
    try:
        docker.start()
        docker.import_image(root, BASE)
        yield docker
    finally:
        docker.close()


@pytest.fixture
def podman(podman_store: Podman) -> Iterator[Podman]:
    yield podman_store
    _clear(podman_store)


@pytest.fixture
def docker(docker_daemon: Docker) -> Iterator[Docker]:
    yield docker_daemon
    _clear(docker_daemon)


@pytest.fixture(params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def shop(ground: Path, engine: Engine) -> Iterator[Shop]:
    made = Shop(ground, engine)
    yield made
    made.ledger.close()


def _clear(engine: Engine) -> None:
    engine.clear()
    listed = engine.run("images", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}").splitlines()
    others = [line.split() for line in listed if not line.startswith(f"{BASE} ")]
    # By name, so that a second name of the base's takes nothing else along.
    if names := [id if "<none>" in name else name for name, id in others]:
        engine.run("rmi", "--force", *names)
