"""Another certificate in the place of one: interrupted between every two steps, and asked for again."""

from __future__ import annotations

import hashlib
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.broker import Address
from agent.control import renewal
from agent.control.config import Settings
from agent.control.declaring import sign
from agent.control.founding import known_by
from agent.control.sealing import sealed_for
from agent.control.signing import ensure_key, read_keyring
from agent.control.store import MeshSecret, Store, open_store
from agent.envelope import SigningKey
from agent.errors import Refused

NOW = 1_000_000.0


@pytest.fixture
def store(ground: Path) -> Iterator[Store]:
    (ground / "control").mkdir()
    with closing(open_store(ground, migrate=True)) as store:
        ensure_key(ground, store, lambda count: b"s" * count, NOW)
        yield store


@pytest.fixture
def folder(ground: Path) -> Path:
    """Where the broker's certificate lies."""
    folder = ground / "secrets" / "root"
    folder.mkdir(parents=True, mode=0o700)
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    files = ["-keyout", str(folder / "broker.key"), "-out", str(folder / "broker.crt")]
    subprocess.run([*argv, "-subj", "/CN=mesh", *files], check=True, capture_output=True)
    return folder


def pin(certificate: Path) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()


def settings_of(ground: Path, store: Store, certificate: str) -> Settings:
    """What a command knows while control.toml names this certificate."""
    told = Settings(
        broker=Address("127.0.0.1", 1),
        management="https://127.0.0.1:2",
        account="control",
        password="p",
        fingerprints=(certificate,),
        advertised=None,
        token_file=ground / "token",
        node="founder",
    )
    return known_by(told, store)


def belong_together(folder: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "broker.crt", folder / "broker.key")
    except ssl.SSLError:
        return False
    return True


@pytest.mark.parametrize("steps", [(), ("key",), ("key", "crt"), ("key", "crt", "-key")])
def test_a_swap_that_is_cut_short_is_finished_by_another(
    ground: Path, store: Store, folder: Path, steps: tuple[str, ...]
) -> None:
    old = pin(folder / "broker.crt")
    following = renewal.begin(ground, store, settings_of(ground, store, old), NOW)
    for step in steps:
        if step == "-key":
            (folder / "broker-next.key").unlink()
        else:
            shutil.copy(folder / f"broker-next.{step}", folder / f"broker.{step}")
    if "crt" in steps:
        # It is in its place, and what is left to do is the agent's here.
        with pytest.raises(Refused, match="in its place already"):
            renewal.begin(ground, store, settings_of(ground, store, old), NOW)
        renewal.finish(ground, store, settings_of(ground, store, following), NOW)
        assert store.settings.pins == (following,)
        old, following = following, renewal.begin(ground, store, settings_of(ground, store, following), NOW)
    else:
        assert renewal.begin(ground, store, settings_of(ground, store, old), NOW) == following
    renewal.swap(ground, store, settings_of(ground, store, old))
    assert (pin(folder / "broker.crt"), belong_together(folder)) == (following, True)
    assert sorted(path.name for path in folder.iterdir()) == ["broker.crt", "broker.key"]


def test_a_node_that_can_be_told_nothing_keeps_no_control_plane_from_starting(
    ground: Path, store: Store, folder: Path
) -> None:
    old, key = pin(folder / "broker.crt"), SigningKey(b"n" * 32).public
    store.nodes.enrol("a", key, b"", {}, NOW)
    store.secrets.put(MeshSecret("db", "value", 1, NOW))
    with store.transaction():
        node = store.nodes.get("a")
        assert node is not None
        sealed = sealed_for(store, node, ["db"])["db"]
        item = {"kind": "secret", "name": "db", "sealed": sealed.hex()}
        sign(store, read_keyring(ground, store), node, [item], ["secret:db"], now=NOW)
    following = renewal.begin(ground, store, settings_of(ground, store, old), NOW)
    renewal.swap(ground, store, settings_of(ground, store, old))
    store.nodes.enrol("a", bytes(32), b"", {}, NOW)  # with a key that is none
    renewal.finish(ground, store, settings_of(ground, store, following), NOW)
    assert store.settings.pins == (following,)
