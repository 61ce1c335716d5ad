"""A backup holds all that the mesh needs, and outlives the program that wrote it."""

from __future__ import annotations

import io
import json
import tarfile
from contextlib import closing
from pathlib import Path

from agent.control.backup import restore_backup
from agent.control.store import MeshSecret, open_store
from agent.control.store.store import _MIGRATIONS
from agent.database import open_database

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
