"""A backup holds all that the mesh needs, and outlives the program that wrote it."""

from __future__ import annotations

import hashlib
import io
import json
import ssl
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from agent.control.backup import restore_backup, write_backup
from agent.control.signing import ensure_key, make_key, read_keyring
from agent.control.store import MeshSecret, Store, open_store
from agent.control.store.store import _MIGRATIONS
from agent.database import open_database
from agent.errors import Refused, Unavailable
from agent.node.identity import Identity, Role, Self

ROOT = Path(__file__).parents[3]
SECRET = MeshSecret("db", "value", 1, 1.0)


def pack(ground: Path, store: Path) -> Path:
    """A backup with this store in it."""
    parts = {
        "backup.json": json.dumps({"version": 1, "node": "founder", "made_at": 1}).encode(),
        "store.db": store.read_bytes(),
        "keys/1.seed": b"s" * 32,
    }
    with tarfile.open(ground / "backup", "w:gz") as archive:
        for name, data in parts.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return ground / "backup"


def test_the_meshs_secrets_are_in_it(ground: Path) -> None:
    (ground / "control").mkdir()
    with closing(open_store(ground, migrate=True)) as store:
        store.secrets.put(SECRET)
        store.copy_to(ground / "copy")
    restore_backup(ground / "state", pack(ground, ground / "copy"))
    with closing(open_store(ground / "state")) as store:
        assert store.secrets.all() == (SECRET,)
    assert (ground / "state" / "control" / "store.db").stat().st_mode & 0o777 == 0o600


def test_an_older_programs_is_brought_up_to_date(ground: Path) -> None:
    with closing(open_database(ground / "old.db", migrations=_MIGRATIONS[:1], migrate=True)) as old:
        old.execute("PRAGMA journal_mode = DELETE")
    assert restore_backup(ground / "state", pack(ground, ground / "old.db")) == "founder"
    with closing(open_store(ground / "state")) as store:
        store.secrets.put(SECRET)
        assert store.secrets.get("db") == SECRET


def test_one_that_was_overtaken_by_a_rotation_is_not_written(ground: Path) -> None:
    """What it would hold of keys and what its store says of them would not fit together."""
    (ground / "control").mkdir()
    certificate = ground / "secrets" / "broker" / "broker.crt"
    certificate.parent.mkdir(parents=True)
    certificate.write_text(ssl.DER_cert_to_PEM_cert(b"certificate"))
    certificate.with_suffix(".key").write_text("key")
    pin = hashlib.sha256(b"certificate").hexdigest()

    class Overtaken(Store):
        def copy_to(self, path: Path) -> None:
            super().copy_to(path)
            make_key(ground, self, lambda count: b"n" * count, 2.0)

    def write(store: Store) -> None:
        write_backup(ground, store, ground / "backup", node="founder", fingerprints=(pin,), now=3.0)

    with closing(open_store(ground, migrate=True)) as store:
        ensure_key(ground, store, lambda count: b"s" * count, 1.0)
        with pytest.raises(Unavailable, match="write it again"):
            write(Overtaken(store._database))
        assert sorted(path.name for path in ground.iterdir()) == ["control", "secrets"]
        assert not (ground / "control" / "store.copy").exists()
        write(store)
    assert restore_backup(ground / "state", ground / "backup") == "founder"
    with closing(open_store(ground / "state")) as restored:
        assert len(read_keyring(ground / "state", restored).keys) == 2


def test_a_restore_that_is_killed_leaves_no_store_that_believes_what_nodes_hold(ground: Path) -> None:
    (ground / "control").mkdir()
    with closing(open_store(ground, migrate=True)) as store:
        store.nodes.enrol("a", b"k" * 32, b"", {}, 1.0)
        store.copy_to(ground / "copy")
    file, state = pack(ground, ground / "copy"), ground / "state"
    # SQLite's own: what nodes hold is being doubted.
    killed = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", "inject=fdatasync:signal=KILL"]
    restore = [sys.executable, "-m", "agent", "control", "restore", str(file), "--state", str(state)]
    done = subprocess.run([*killed, *restore], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode != 0
    assert (state / "control" / "keys" / "1.seed").exists()
    assert not (state / "control" / "store.db").exists()
    restore_backup(state, file)
    with closing(open_store(state)) as store:
        node = store.nodes.get("a")
        assert node is not None
        assert node.floor is None
    assert sorted(path.name for path in (state / "control").iterdir()) == ["keys", "store.db"]


def test_a_certificate_that_is_in_the_place_of_the_one_before_is_taken(ground: Path) -> None:
    (ground / "control").mkdir()
    folder = ground / "secrets" / "broker"
    folder.mkdir(parents=True)
    pins = [hashlib.sha256(text).hexdigest() for text in (b"old", b"next")]
    for name in ("broker", "broker-next"):  # a renewal that was cut short when all but one step was done
        (folder / f"{name}.crt").write_text(ssl.DER_cert_to_PEM_cert(b"next"))
        (folder / f"{name}.key").write_text("key")
    with closing(open_store(ground, migrate=True)) as store:
        ensure_key(ground, store, lambda count: b"s" * count, 1.0)
        write_backup(ground, store, ground / "backup", node="founder", fingerprints=pins, now=3.0)
    restore_backup(ground / "state", ground / "backup")
    assert sorted(path.name for path in (ground / "state" / "secrets" / "broker").iterdir()) == [
        "broker.crt",
        "broker.key",
    ]


def test_on_a_machine_that_has_joined_a_mesh_nothing_is_restored(ground: Path) -> None:
    (ground / "control").mkdir()
    with closing(open_store(ground, migrate=True)) as store:
        store.copy_to(ground / "copy")
    state = ground / "state"
    state.mkdir()
    identity = Identity(state)
    identity.decide(Self("b", Role.JOINER))
    with pytest.raises(Refused, match="has joined a mesh"):
        restore_backup(state, pack(ground, ground / "copy"))
    assert [path.name for path in state.iterdir()] == ["identity"]
    # Of a founder only the control plane's folder may have been lost.
    identity.decide(Self("founder", Role.FOUNDER))
    assert restore_backup(state, pack(ground, ground / "copy")) == "founder"
