"""Images that a file carries, taken from an engine: by name, twice the same, loaded where they are declared."""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.bundle import Bundle, archive_of, open_bundle, pack
from agent.errors import Refused, Unavailable
from agent.host import processes
from agent.kinds.engine import EngineFailed, Engines
from agent.node import carrying, substrate
from agent.node.substrate import Substrate
from agent.reconcile import Reconciler
from agent.resources import EngineName, FromBlob, Origin
from tests.engines.docker import Docker
from tests.engines.podman import Podman
from tests.engines.shop import Shop

NAME = "registry.example/team/app:1"
TEXT = f"""
name = "small"
[params]
image = "{NAME}"
[[resource]]
kind = "image"
name = "${{param.image}}"
[[resource]]
kind = "container"
name = "web"
image = "${{param.image}}"
command = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"]
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """An agent file that carries nothing."""
    path = tmp_path / "plain"
    with path.open("wb") as file:
        file.write(b"#!/bin/sh\n")
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("__main__.py", "")
    return path


@pytest.fixture
def author(tmp_path: Path) -> Path:
    folder = tmp_path / "author"
    (folder / "blobs").mkdir(parents=True)
    (folder / "bundle.toml").write_text(TEXT)
    return folder


def load(place: Path | Bundle, shop: Shop) -> Substrate:
    bundle = place if isinstance(place, Bundle) else open_bundle(place)
    return substrate.load(bundle, shop.state, "a", {}, founder=True)


def test_a_carried_image_is_loaded_where_its_bundle_asks_for_it_by_name(
    shop: Shop, plain: Path, author: Path, tmp_path: Path
) -> None:
    shop.engine.run("tag", "localhost/base:1", NAME)
    sources = carrying.image_sources([NAME], load(author, shop), shop.engines, None)
    packed = [pack(plain, author, tmp_path / name, sources) for name in ("one", "two")]
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    shop.engine.run("rmi", NAME)
    carried = load(packed[0], shop)
    assert carried.resources[0].spec.archive == FromBlob(  # type: ignore[union-attr]
        archive_of(NAME), packed[0].blobs[archive_of(NAME)].sha256, packed[0].blobs[archive_of(NAME)].size
    )
    machine = replace(shop.machine, read_blob=carried.read_blob)
    outcome = Reconciler(shop.ledger, machine, shop.kinds, shop.reconciler.clock).apply(
        carried.resources, Origin.CARRIED, prune=True, tell=shop.steps.append
    )
    assert not outcome.failed
    assert shop.inspect("web")["State"]["Running"] is True
    # What is loaded needs no more room.
    substrate.check_room(carried, shop.state, shop.engines)


def test_what_is_asked_for_in_vain_is_told(shop: Shop, plain: Path, author: Path) -> None:
    def told(name: str, engines: Engines = shop.engines, wanted: EngineName | None = None) -> str:
        with pytest.raises((Refused, Unavailable)) as error:
            carrying.image_sources([name], load(author, shop), engines, wanted)
        return str(error.value)

    asked = told("registry.example/team/app:2")
    assert "the bundle small asks for no image" in asked
    assert f'did you mean "{NAME}"?' in asked
    shop.engine.run("tag", "localhost/base:1", "registry.example/team/apps:1")
    unknown = told(NAME)
    assert f'{shop.engine.name} here has no image "{NAME}"; did you mean "registry.example/team/apps:1"?' in unknown
    assert "has no container engine" in told(NAME, Engines({}, find=lambda name: None))
    other = EngineName.DOCKER if shop.engine.name == "podman" else EngineName.PODMAN
    assert f"has no {other.value} to take images from" in told(NAME, wanted=other)
    (author / "blobs" / archive_of(NAME)).write_bytes(b"")
    assert f"has the image {NAME} already, as its blob" in told(NAME)


def test_an_engine_that_dies_over_it_leaves_no_file(shop: Shop, plain: Path, author: Path, tmp_path: Path) -> None:
    shop.engine.run("tag", "localhost/base:1", NAME)
    (source,) = carrying.image_sources([NAME], load(author, shop), shop.engines, None).values()

    def dying() -> Iterator[bytes]:
        for chunk in source():
            for child in processes.descendants(processes.current()):
                if f"{shop.engine.name} save" in processes.command(child.pid):
                    os.kill(child.pid, signal.SIGKILL)
            yield chunk

    with pytest.raises(EngineFailed, match=f"{shop.engine.name} can't save the image {NAME}"):
        pack(plain, author, tmp_path / "packed", {NAME: dying})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["author", "plain"]


def test_podman_is_asked_before_docker_and_docker_when_it_alone_has_it(
    podman: Podman, docker: Docker, ground: Path, author: Path
) -> None:
    shop = Shop(ground, podman, others=(docker,))
    docker.run("tag", "localhost/base:1", NAME)

    def manifest(wanted: EngineName | None = None) -> bytes:
        (source,) = carrying.image_sources([NAME], load(author, shop), shop.engines, wanted).values()
        return b"".join(source())

    of_docker = manifest()
    podman.run("tag", "localhost/base:1", NAME)
    assert manifest() != of_docker
    assert manifest(EngineName.DOCKER) == of_docker
    shop.ledger.close()


def test_an_image_needs_room_where_its_engine_keeps_it(shop: Shop, author: Path) -> None:
    bundle = load(author, shop).bundle
    archive = archive_of(NAME)
    (author / "blobs" / archive).write_bytes(b"")
    bundle = open_bundle(author)
    huge = load(replace(bundle, blobs={archive: replace(bundle.blobs[archive], size=2**50)}), shop)
    with pytest.raises(Refused, match=r"has \d+ MiB free and this bundle needs 3221225536 MiB there; make room"):
        # In the state folder, as part of the file; in the engine's; and where the engine lays it down meanwhile.
        substrate.check_room(huge, shop.state, shop.engines)
    store = shop.engines.choose(None, shop.machine).store()
    assert store.is_relative_to(shop.engine.folder)
