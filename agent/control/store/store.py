"""The open store: its schema, and one object a noun for what is asked of it.

Only `serve` migrates; whoever else comes is told in words when the schema isn't its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.control.store import arrangements, modules, secrets
from agent.control.store.arrangements import Arrangements
from agent.control.store.declarations import Declarations
from agent.control.store.modules import Modules
from agent.control.store.nodes import Nodes
from agent.control.store.secrets import Secrets
from agent.control.store.settings import Settings
from agent.control.store.signers import Signers
from agent.control.store.tokens import Tokens
from agent.database import Database, open_database, refuse_newer_schema

_FIRST = """
CREATE TABLE node (
    name TEXT PRIMARY KEY,
    public_key BLOB NOT NULL,
    overlay_key BLOB NOT NULL,
    profile TEXT NOT NULL,
    enrolled REAL NOT NULL,
    joined_under BLOB NOT NULL,
    confirmed BLOB NOT NULL,
    counter INTEGER NOT NULL DEFAULT 0,
    clock_offset REAL,
    version TEXT NOT NULL DEFAULT '',
    last_seen REAL,
    reported INTEGER,
    reported_at REAL,
    holdings TEXT NOT NULL DEFAULT '[]',
    holdings_serial INTEGER NOT NULL DEFAULT 0,
    carried TEXT NOT NULL DEFAULT '[]',
    failures TEXT NOT NULL DEFAULT '{}',
    refusal TEXT,
    refusal_serial INTEGER,
    refusal_at REAL
) WITHOUT ROWID;
CREATE TABLE token (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    node TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    broker TEXT NOT NULL,
    signer BLOB NOT NULL,
    made REAL NOT NULL,
    expires REAL NOT NULL,
    spent REAL,
    public_key BLOB,
    password TEXT,
    request BLOB,
    replaces INTEGER NOT NULL DEFAULT 0,
    ended INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE declaration (
    node TEXT NOT NULL REFERENCES node (name) ON DELETE CASCADE,
    serial INTEGER NOT NULL,
    data BLOB NOT NULL,
    signature BLOB NOT NULL,
    signer BLOB NOT NULL,
    offers BLOB NOT NULL,
    declared REAL NOT NULL,
    due INTEGER NOT NULL,
    PRIMARY KEY (node, serial)
);
CREATE INDEX declaration_due ON declaration (due) WHERE due = 1;
CREATE TABLE declared (
    node TEXT NOT NULL REFERENCES node (name) ON DELETE CASCADE,
    id TEXT NOT NULL,
    serial INTEGER NOT NULL,
    PRIMARY KEY (node, id)
) WITHOUT ROWID;
CREATE TABLE signer (
    number INTEGER PRIMARY KEY,
    public_key BLOB NOT NULL UNIQUE,
    made REAL NOT NULL,
    retired INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_MIGRATIONS = (
    _FIRST + modules.SCHEMA + arrangements.SCHEMA,
    secrets.SCHEMA + arrangements.SECRETS,
    "ALTER TABLE node ADD COLUMN floor INTEGER DEFAULT 0;",
)


class Store:
    """The store of one control plane; what belongs together is done inside one `transaction`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.nodes = Nodes(database)
        self.tokens = Tokens(database)
        self.declarations = Declarations(database)
        self.signers = Signers(database)
        self.modules = Modules(database)
        self.arrangements = Arrangements(database)
        self.secrets = Secrets(database)
        self.settings = Settings(database)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or nothing of it; durable when it returns. Not to be nested."""
        with self._database.transaction():
            yield

    def copy_to(self, path: Path) -> None:
        """Write the whole of it, as it is at one moment, to a file that isn't there yet."""
        self._database.execute("VACUUM INTO ?", (str(path),))

    def version(self) -> int:
        """A number that changes when another process has committed something."""
        return self._database.data_version()

    def close(self) -> None:
        self._database.close()


def refuse_newer(state: Path) -> None:
    """Refused when the store in the state folder is of a newer program than this."""
    refuse_newer_schema(state / "control" / "store.db", len(_MIGRATIONS))


def open_store(state: Path, *, migrate: bool = False) -> Store:
    """The store in the state folder. Refused when it is not there, or is not of this program's version.

    With `migrate` it is made and brought up to date, in one transaction.
    """
    return Store(open_database(state / "control" / "store.db", migrations=_MIGRATIONS, migrate=migrate))
