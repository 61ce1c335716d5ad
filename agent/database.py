"""SQLite as this project uses it, for the ledger and the store.

- What is committed is not forgotten: WAL, synchronous=FULL. What belongs together changes in one transaction.
- A schema's version is its number of migrations (PRAGMA user_version); all that are missing run in one
  transaction, and only for who asks for it. A newer schema than this program's is refused.
- Whatever SQLite can't do is said in words: try again (locked, full) or give up (damaged).
- One connection may be used by several threads: each waits while another is in a transaction.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agent.errors import AgentError, Fatal, Refused, Unavailable

try:
    import sqlite3
except ImportError as failure:
    raise Fatal(
        f"This Python ({sys.executable}) comes without sqlite3; install the rest of it "
        "(on Debian and Ubuntu: apt-get install libpython3-stdlib, or python3-full)."
    ) from failure

Row = sqlite3.Row
Parameters = Sequence[Any] | Mapping[str, Any]
_BUSY_SECONDS = 10.0


class NotMade(Refused):
    """There is no database at this path, or an empty one: whoever makes it hasn't, or died in the middle."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not there; nothing has been set up here yet.")


class Database:
    """An open database; made by `open_database`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._connection = connection
        self._turn = threading.RLock()

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """All rows that a query gives; columns by index or name."""
        with self._turn, _in_words(self.path):
            return self._connection.execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The first row that a query gives."""
        with self._turn, _in_words(self.path):
            found: Row | None = self._connection.execute(sql, parameters).fetchone()
            return found

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Runs one statement; how many rows it changed. Outside a transaction it is one by itself."""
        with self._turn, _in_words(self.path):
            return self._connection.execute(sql, parameters).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or, if it raises, nothing of it; durable when it returns. Not to be nested."""
        with self._turn:
            with _in_words(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                with _in_words(self.path):
                    self._connection.execute("COMMIT")
            except BaseException:
                # SQLite itself has already rolled back after some failures (a full disk).
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def data_version(self) -> int:
        """A number that changes when another connection, of this process or not, has committed something."""
        return self._pragma("data_version")

    def schema_version(self) -> int:
        """How many migrations this database has had."""
        return self._pragma("user_version")

    def copy_to(self, connection: sqlite3.Connection) -> None:
        """Write all of it, as it is at one moment, to another database."""
        with self._turn, _in_words(self.path):
            self._connection.backup(connection)

    def close(self) -> None:
        """Closes it; further use is an error in the program."""
        with self._turn:
            self._connection.close()

    def _pragma(self, name: str) -> int:
        found = self.row(f"PRAGMA {name}")
        assert found is not None
        return int(found[0])


Migration = str | Callable[[Database], None]


def open_database(
    path: Path, *, migrations: Sequence[Migration], migrate: bool = False, readonly: bool = False
) -> Database:
    """Opens the database at `path`, made 0600 when absent and `migrate` is given.

    A migration is SQL (any number of statements) or a function that is called inside the transaction. Of an older
    schema that is to be read only, what is given is a copy in memory, brought up to date: as it will be once somebody
    migrates it. Refused: absent, a newer schema, an older one that is to be written without `migrate`; Unavailable:
    locked, no room; Fatal: damaged.
    """
    if migrate and not readonly:
        _create(path)
    elif not path.exists():
        raise NotMade(path)
    with _in_words(path):
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    database = Database(connection, path)
    connection.row_factory = sqlite3.Row
    try:
        _refuse_newer(database, len(migrations))
        with _in_words(path):
            _configure(connection, readonly=readonly)
        if migrate and not readonly:
            _migrate(database, migrations)
        elif database.schema_version() == 0:  # whoever was making it has died
            raise NotMade(path)
        elif database.schema_version() < len(migrations) and readonly:
            database = _migrated_copy(database, migrations)
        elif database.schema_version() < len(migrations):
            raise Refused(
                f"{path} has schema {database.schema_version()}, this program has schema {len(migrations)}; "
                "start the new program in the old one's place first, which brings it up to date."
            )
    except BaseException:
        connection.close()
        raise
    return database


def refuse_newer_schema(path: Path, known: int) -> None:
    """Refused when a database that is there has a schema above `known`, which nobody else but its program can use."""
    if not path.exists():
        return
    with _in_words(path):
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    with closing(connection):
        _refuse_newer(Database(connection, path), known)


def _migrated_copy(database: Database, migrations: Sequence[Migration]) -> Database:
    with _in_words(database.path):
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    copy = Database(memory, database.path)
    try:
        memory.row_factory = sqlite3.Row
        database.copy_to(memory)
        database.close()
        _migrate(copy, migrations)
    except BaseException:
        memory.close()
        raise
    return copy


def _create(path: Path) -> None:
    # SQLite would make it with the umask's mode; its -wal and -shm files take the mode of this one. One that is there
    # is not opened here: closing it again would drop the locks of this process's other connections (fcntl(2)), and the
    # next process to look would take the write-ahead log away from under them.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise Unavailable(f"Making {path} failed: {(error.strerror or str(error)).lower()}.") from error


def _configure(connection: sqlite3.Connection, *, readonly: bool) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    if readonly:
        connection.execute("PRAGMA query_only = ON")
    elif connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode = WAL")


def _refuse_newer(database: Database, known: int) -> None:
    version = database.schema_version()
    if version > known:
        raise Refused(
            f"{database.path} has schema {version}, this program knows up to {known}; "
            "use the newer program that wrote it."
        )


def _migrate(database: Database, migrations: Sequence[Migration]) -> None:
    if database.schema_version() == len(migrations):
        return
    with database.transaction():
        # Asked again inside: another process may have done it, or gone further, while this one waited.
        _refuse_newer(database, len(migrations))
        for migration in migrations[database.schema_version() :]:
            if isinstance(migration, str):
                for statement in _statements(migration):
                    database.execute(statement)
            else:
                migration(database)
        database.execute(f"PRAGMA user_version = {len(migrations)}")


def _statements(sql: str) -> Iterator[str]:
    """The single statements of a script; executescript would commit the transaction around it."""
    statement = ""
    for piece in sql.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip(";\n\t "):
        yield statement


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        failure = _words(path, str(error))
        if failure is None:
            raise
        raise failure from error


def _words(path: Path, reason: str) -> AgentError | None:
    """The failure behind SQLite's message (sqlite3_errstr); None for a mistake in this program.

    The texts, not the codes: Python tells the codes only from 3.11 on.
    """
    if reason.endswith("is locked"):
        return Unavailable(f"{path} is in use by another process; try again in a moment.")
    if reason == "database or disk is full":
        return Unavailable(f"{path} can't be written: the disk is full; make room and try again.")
    if reason.startswith(("disk I/O error", "unable to open database", "attempt to write a readonly database")):
        return Unavailable(f"{path} can't be used: {reason}; see that its folder can be written.")
    if reason in {"database disk image is malformed", "file is not a database"}:
        return Fatal(f"{path} is damaged ({reason}); put a backup in its place, or move it away.")
    return None
