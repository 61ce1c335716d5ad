"""Images in real engines: loaded from archives, known by their ids, loaded again when they are lost."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from agent.kinds import loaded
from agent.resources import EngineName
from tests.engines import registry
from tests.engines.archives import docker_archive, oci_archive
from tests.engines.podman import Podman
from tests.engines.shop import Item, Shop

IMAGE: Item = {"kind": "image", "name": "mesh/app:1", "blob": "app.tar"}
APP: Item = {"kind": "container", "name": "app", "image": "mesh/app:1", "stop_signal": "SIGKILL"}
SLEEP = ["/bin/sleep", "1000"]


def carry(shop: Shop, root: Path, version: str = "1", name: str = "mesh/app:1") -> str:
    """Put an archive into the bundle; the id of what is in it."""
    content, id = docker_archive(root, name, Cmd=SLEEP, Env=[f"VERSION={version}"])
    shop.blobs["app.tar"] = content
    return id


def test_a_carried_image_is_loaded_once_and_run_by_its_id(shop: Shop, root: Path) -> None:
    id = carry(shop, root)
    assert shop.raised(IMAGE, APP) == [("image:mesh/app:1", "created"), ("container:app", "created")]
    assert id in shop.image_ids()
    assert shop.image_of("app") == id
    # Another image gets the name: what is declared is still what the archive held.
    shop.engine.run("tag", "localhost/base:1", "mesh/app:1")
    shop.engine.run("rm", "--force", "app")
    assert shop.raised(IMAGE, APP) == [("image:mesh/app:1", "kept"), ("container:app", "created")]
    assert shop.image_of("app") == id


@pytest.mark.parametrize("name", ["", "other/name:7"])
def test_what_an_archive_calls_its_image_does_not_matter(shop: Shop, root: Path, name: str) -> None:
    id = carry(shop, root, name=name)
    shop.raised(IMAGE, APP)
    assert shop.image_of("app") == id
    assert shop.reset() == {}
    assert id not in shop.image_ids()


def test_one_that_the_engine_lost_is_loaded_again(shop: Shop, root: Path) -> None:
    id = carry(shop, root)
    shop.raised(IMAGE)
    shop.engine.run("rmi", "--force", id)
    assert shop.plan(IMAGE)[0].reason == f"{shop.engine.name} has lost it"
    assert shop.raised(IMAGE) == [("image:mesh/app:1", "changed")]
    assert id in shop.image_ids()


def test_a_newer_archive_replaces_the_container_and_the_older_image_goes(shop: Shop, root: Path) -> None:
    older = carry(shop, root, "1")
    shop.raised(IMAGE, APP)
    newer = carry(shop, root, "2")
    assert shop.raised(IMAGE, APP) == [("image:mesh/app:1", "changed"), ("container:app", "changed")]
    assert shop.image_of("app") == newer
    assert older not in shop.image_ids()


def test_what_was_there_before_is_left_and_what_is_used_is_named(shop: Shop, root: Path) -> None:
    found = carry(shop, root)
    path = shop.ground / "app.tar"
    path.write_bytes(shop.blobs["app.tar"])
    shop.engine.run("load", "--input", path)
    shop.raised(IMAGE)
    assert shop.reset() == {}
    assert found in shop.image_ids()
    used = carry(shop, root, "2", name="")
    shop.raised(IMAGE)
    shop.engine.run("run", "--detach", "--name", "theirs", used)
    assert shop.reset() == {}
    assert f"`{shop.engine.name} rmi {used[:12]}`" in shop.steps[0].detail
    assert used in shop.image_ids()


def test_a_load_that_was_cut_short_is_repeated_and_still_ours(shop: Shop, root: Path) -> None:
    id = carry(shop, root)
    before = shop.image_ids()
    shop.raised(IMAGE)
    # As if the agent had been killed after the engine had loaded it, and before it knew.
    record = loaded.read(shop.machine, "mesh/app:1")
    assert record
    loaded.write(shop.machine, replace(record, image="", names=(), others=tuple(before)))
    shop.lose_ledger()
    assert shop.raised(IMAGE) == [("image:mesh/app:1", "created")]
    assert shop.reset() == {}
    assert id not in shop.image_ids()


def test_a_damaged_archive_loads_nothing(shop: Shop, root: Path) -> None:
    id = carry(shop, root)
    shop.damaged.add("app.tar")
    assert shop.failure(IMAGE) == "app.tar is not what was packed."
    assert id not in shop.image_ids()
    assert shop.failure(IMAGE, APP) == "it needs image:mesh/app:1, which failed"
    # A list that doesn't declare it doesn't get it from a registry either.
    assert (
        shop.failure(APP)
        == "The image mesh/app:1 that is carried is not loaded yet; see what became of image:mesh/app:1."
    )
    shop.damaged.clear()
    shop.raised(IMAGE)
    shop.blobs["app.tar"] = b"no archive" * 1000
    assert shop.failure(IMAGE).startswith(f"{shop.engine.name} can't load the image mesh/app:1: ")


def test_podman_takes_an_archive_of_the_oci_format(podman: Podman, ground: Path, root: Path) -> None:
    shop = Shop(ground, podman)
    shop.blobs["app.tar"], id = oci_archive(root, "mesh/app:1", Cmd=SLEEP)
    shop.raised(IMAGE, APP)
    assert shop.image_of("app") == id
    shop.ledger.close()


def test_an_image_that_is_not_carried_is_fetched_and_one_that_is_there_never_is(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    # Nobody listens there.
    image: Item = {"kind": "image", "name": "127.0.0.1:1/app:1"}
    failure = shop.failure(image)
    assert failure.startswith(f"{shop.engine.name} can't fetch the image 127.0.0.1:1/app:1: ")
    assert failure.endswith("connection refused")
    assert f"{shop.engine.name} fetches the image 127.0.0.1:1/app:1" in caplog.messages
    assert any(message.startswith("the image 127.0.0.1:1/app:1: ") for message in caplog.messages)
    shop.engine.run("tag", "localhost/base:1", "127.0.0.1:1/app:1")
    assert shop.raised(image, {**APP, "image": image["name"], "command": SLEEP}) == [
        ("image:127.0.0.1:1/app:1", "adopted"),
        ("container:app", "created"),
    ]
    assert shop.reset() == {}
    assert shop.engine.run("images", "--quiet", "127.0.0.1:1/app:1")


def test_one_that_is_not_carried_comes_from_its_registry_once(
    shop: Shop, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with registry.serve(root, Cmd=SLEEP) as there:
        if isinstance(shop.engine, Podman):
            shop.engine.trust(there.name.partition("/")[0])
        image, app = {"kind": "image", "name": there.name}, {**APP, "image": there.name}
        assert shop.raised(image, app)[0] == (f"image:{there.name}", "created")
        assert shop.image_of("app") == there.id
        # How it went was told on the way.
        assert f"{shop.engine.name} fetches the image {there.name}" in caplog.messages
        assert len([line for line in caplog.messages if line.startswith(f"the image {there.name}: ")]) > 1
        asked = len(there.asked)
        assert shop.raised(image, {**app, "labels": {"new": "1"}})[1] == ("container:app", "changed")
        assert len(there.asked) == asked
    assert shop.reset() == {}
    assert there.id not in shop.image_ids()


def test_the_engine_that_is_used_stays_the_one(podman: Podman, docker: object, ground: Path, root: Path) -> None:
    shop = Shop(ground, docker)  # type: ignore[arg-type]
    carry(shop, root)
    shop.raised(IMAGE, APP)
    shop.others = (podman,)
    assert shop.raised(IMAGE, APP) == [("image:mesh/app:1", "kept"), ("container:app", "kept")]
    record = loaded.read(shop.machine, "mesh/app:1")
    assert record
    assert record.engine is EngineName.DOCKER
    # Asked by name, both move.
    there = {"engine": "podman"}
    assert shop.raised({**IMAGE, **there}, {**APP, **there}) == [
        ("image:mesh/app:1", "changed"),
        ("container:app", "changed"),
    ]
    assert shop.names() == set()
    assert podman.run("ps", "--format", "{{.Names}}") == "app"
    assert shop.reset() == {}
    assert podman.run("ps", "--all", "--quiet") == ""
    shop.ledger.close()
