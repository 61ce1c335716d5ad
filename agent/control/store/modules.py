"""Modules in the store: every version that was added, as a JSON document."""

from __future__ import annotations

from dataclasses import dataclass

from agent.control.modules import Module, encode_module, read_module
from agent.database import Database, Row
from agent.fields import Fields, canonical, parse_json

SCHEMA = """
CREATE TABLE module (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    document TEXT NOT NULL,
    added REAL NOT NULL,
    PRIMARY KEY (name, version)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a module; numbers grow. `added` is in seconds since the epoch."""

    number: int
    module: Module
    added: float


class Modules:
    """The modules that can be assigned."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def names(self) -> tuple[str, ...]:
        rows = self._database.rows("SELECT DISTINCT name FROM module ORDER BY name")
        return tuple(str(row["name"]) for row in rows)

    def newest(self, name: str) -> Version | None:
        row = self._database.row("SELECT * FROM module WHERE name = ? ORDER BY version DESC LIMIT 1", (name,))
        return _version(row) if row else None

    def get(self, name: str, version: int) -> Version | None:
        row = self._database.row("SELECT * FROM module WHERE name = ? AND version = ?", (name, version))
        return _version(row) if row else None

    def add(self, version: Version) -> None:
        document = canonical(encode_module(version.module))
        self._database.execute(
            "INSERT INTO module (name, version, document, added) VALUES (?, ?, ?, ?)",
            (version.module.name, version.number, document, version.added),
        )

    def remove(self, name: str) -> None:
        """Drop every version of a module."""
        self._database.execute("DELETE FROM module WHERE name = ?", (name,))


def _version(row: Row) -> Version:
    module = read_module(Fields(parse_json(row["document"].encode("utf-8")), f"the module {row['name']}"))
    return Version(row["version"], module, row["added"])
