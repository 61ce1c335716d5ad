"""The mesh's secrets in the store, and what each was sealed to for which node.

Their values stand here as they are: who can read this file can read the signing keys beside it, and so would the key to
anything else. What is dropped or replaced is overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.database import Database, Row

SCHEMA = """
CREATE TABLE secret (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    version INTEGER NOT NULL,
    since REAL NOT NULL
);
CREATE TABLE sealed (
    secret TEXT NOT NULL REFERENCES secret (name) ON DELETE CASCADE,
    node TEXT NOT NULL REFERENCES node (name) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    public_key BLOB NOT NULL,
    box BLOB NOT NULL,
    PRIMARY KEY (secret, node)
);
"""


@dataclass(frozen=True, slots=True)
class MeshSecret:
    """A secret of the mesh; its version grows with each value. `since` is when it got this one (seconds, epoch)."""

    name: str
    value: str = field(repr=False)
    version: int
    since: float


class Secrets:
    """The mesh's secrets."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def names(self) -> tuple[str, ...]:
        return tuple(str(row["name"]) for row in self._database.rows("SELECT name FROM secret ORDER BY name"))

    def all(self) -> tuple[MeshSecret, ...]:
        """Every secret, by name."""
        return tuple(_secret(row) for row in self._database.rows("SELECT * FROM secret ORDER BY name"))

    def get(self, name: str) -> MeshSecret | None:
        row = self._database.row("SELECT * FROM secret WHERE name = ?", (name,))
        return _secret(row) if row else None

    def put(self, secret: MeshSecret) -> None:
        """Keep a new value in the place of the last; what that was sealed to is of no more use."""
        self._overwriting()
        self._database.execute("DELETE FROM sealed WHERE secret = ?", (secret.name,))
        self._database.execute(
            """
            INSERT INTO secret (name, value, version, since) VALUES (?, ?, ?, ?)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value, version = excluded.version, since = excluded.since
            """,
            (secret.name, secret.value, secret.version, secret.since),
        )

    def remove(self, name: str) -> None:
        self._overwriting()
        self._database.execute("DELETE FROM secret WHERE name = ?", (name,))

    def sealed(self, secret: MeshSecret, node: str, public_key: bytes) -> bytes | None:
        """What this value was sealed to for this key of a node's, if it ever was."""
        row = self._database.row(
            "SELECT box FROM sealed WHERE secret = ? AND node = ? AND version = ? AND public_key = ?",
            (secret.name, node, secret.version, public_key),
        )
        return bytes(row["box"]) if row else None

    def keep_sealed(self, secret: MeshSecret, node: str, public_key: bytes, box: bytes) -> None:
        """Remember what it was sealed to, in the place of what it was before for this node."""
        self._database.execute(
            "INSERT OR REPLACE INTO sealed (secret, node, version, public_key, box) VALUES (?, ?, ?, ?, ?)",
            (secret.name, node, secret.version, public_key, box),
        )

    def _overwriting(self) -> None:
        """Have SQLite write zeros over what it drops, whatever it was built to do."""
        self._database.execute("PRAGMA secure_delete = ON")


def _secret(row: Row) -> MeshSecret:
    return MeshSecret(row["name"], row["value"], row["version"], row["since"])
