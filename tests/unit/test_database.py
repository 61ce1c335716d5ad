from __future__ import annotations

import os
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.database import Database, Migration, NotMade, open_database, refuse_newer_schema
from agent.errors import Fatal, Refused, Unavailable
from agent.host import commands

REPOSITORY = Path(__file__).parents[2]
ONE: list[Migration] = ["CREATE TABLE a (x INTEGER PRIMARY KEY, y TEXT NOT NULL); CREATE TABLE b (x REFERENCES a (x));"]


def opened(path: Path) -> Database:
    return open_database(path, migrations=ONE, migrate=True)


def test_a_new_database_is_durable_and_ours_alone(ground: Path) -> None:
    path = ground / "a.db"
    database = opened(path)
    database.execute("INSERT INTO a VALUES (1, 'one')")
    for name in ("a.db", "a.db-wal", "a.db-shm"):
        assert stat.S_IMODE((ground / name).stat().st_mode) == 0o600
    assert [database.rows(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "foreign_keys")] == [
        "wal",
        2,
        1,
    ]
    database.close()
    again = open_database(path, migrations=ONE)
    row = again.row("SELECT * FROM a WHERE x = :x", {"x": 1})
    assert row is not None
    assert row["y"] == "one"
    assert again.row("SELECT * FROM a WHERE x = 2") is None
    again.close()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_transaction_is_all_or_nothing(ground: Path) -> None:
    database = opened(ground / "a.db")
    with database.transaction():
        database.execute("INSERT INTO a VALUES (1, 'one')")

    def change_and(then: Callable[[], object]) -> None:
        with database.transaction():
            database.execute("INSERT INTO a VALUES (2, 'two')")
            then()

    with pytest.raises(KeyboardInterrupt):
        change_and(interrupt)
    with pytest.raises(sqlite3.IntegrityError):
        change_and(lambda: database.execute("INSERT INTO b VALUES (99)"))
    assert [row["x"] for row in database.rows("SELECT x FROM a")] == [1]
    assert database.execute("UPDATE a SET y = 'more'") == 1
    database.close()


def test_migrations_run_once_in_order_and_together(ground: Path) -> None:
    path = ground / "a.db"
    database = opened(path)
    database.execute("INSERT INTO a VALUES (1, 'one')")
    database.close()

    def double(database: Database) -> None:
        database.execute("UPDATE a SET y = y || y")

    trigger = """
        CREATE TRIGGER t AFTER INSERT ON a BEGIN
            DELETE FROM b; -- not the end; of it
            DELETE FROM b WHERE x = ';';
        END;
        CREATE TABLE c (x)
    """
    two = [*ONE, double, trigger]
    with pytest.raises(Refused, match=r"a.db has schema 1, this program has schema 3"):
        open_database(path, migrations=two)
    # Who only reads sees what it will be, and changes nothing.
    copy = open_database(path, migrations=two, readonly=True)
    assert copy.schema_version() == 3
    assert [row["y"] for row in copy.rows("SELECT y FROM a")] == ["oneone"]
    copy.close()
    refuse_newer_schema(path, 1)
    for _ in range(2):
        newer = open_database(path, migrations=two, migrate=True)
        assert newer.schema_version() == 3
        assert [row["y"] for row in newer.rows("SELECT y FROM a")] == ["oneone"]
        assert newer.rows("SELECT * FROM c") == []
        newer.close()
    for how in ({"migrate": True}, {"readonly": True}):
        with pytest.raises(Refused, match=r"a.db has schema 3, this program knows up to 1"):
            open_database(path, migrations=ONE, **how)
    with pytest.raises(Refused, match=r"a.db has schema 3, this program knows up to 2; use the newer program"):
        refuse_newer_schema(path, 2)
    refuse_newer_schema(ground / "none.db", 0)


def test_a_migration_that_fails_changes_nothing(ground: Path) -> None:
    path = ground / "a.db"
    opened(path).close()

    def fail(database: Database) -> None:
        database.execute("INSERT INTO a VALUES (1, 'one')")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        open_database(path, migrations=[*ONE, "CREATE TABLE c (x)", fail], migrate=True)
    database = open_database(path, migrations=ONE)
    assert database.schema_version() == 1
    assert database.rows("SELECT * FROM a") == []
    assert database.rows("SELECT * FROM sqlite_master WHERE name = 'c'") == []
    database.close()


def test_an_absent_database_is_refused_and_not_made(ground: Path) -> None:
    with pytest.raises(Refused, match=r"a.db is not there"):
        open_database(ground / "a.db", migrations=ONE)
    with pytest.raises(Refused, match=r"a.db is not there"):
        open_database(ground / "a.db", migrations=ONE, readonly=True)
    with pytest.raises(Unavailable, match=r"Making .*a.db failed: no such file"):
        opened(ground / "none" / "a.db")
    assert list(ground.iterdir()) == []


def test_a_readonly_database_reads_while_another_writes(ground: Path) -> None:
    path = ground / "a.db"
    writer = opened(path)
    reader = open_database(path, migrations=ONE, readonly=True)
    before = reader.data_version()
    assert reader.data_version() == before
    with writer.transaction():
        writer.execute("INSERT INTO a VALUES (1, 'one')")
        assert reader.rows("SELECT * FROM a") == []
        assert reader.data_version() == before
    assert reader.data_version() != before
    assert len(reader.rows("SELECT * FROM a")) == 1
    with pytest.raises(Unavailable, match="can't be used: attempt to write a readonly database"):
        reader.execute("DELETE FROM a")
    reader.close()
    writer.close()


def test_threads_take_turns(ground: Path) -> None:
    database = opened(ground / "a.db")

    def insert(first: int) -> None:
        for number in range(first, first + 20):
            with database.transaction():
                database.execute("INSERT INTO a VALUES (?, '')", (number,))
                database.execute("UPDATE a SET y = 'done' WHERE x = ?", (number,))

    threads = [threading.Thread(target=insert, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(database.rows("SELECT * FROM a WHERE y = 'done'")) == 60
    database.close()


def test_a_locked_database_can_be_tried_again(ground: Path) -> None:
    path = ground / "a.db"
    one = opened(path)
    two = open_database(path, migrations=ONE)
    two.rows("PRAGMA busy_timeout = 50")
    with (
        one.transaction(),
        pytest.raises(Unavailable, match=r"a.db is in use by another process; try again"),
        two.transaction(),
    ):
        pass
    with two.transaction():
        two.execute("INSERT INTO a VALUES (1, 'one')")
    one.close()
    two.close()


def test_opening_it_twice_hides_nothing_from_other_processes(ground: Path) -> None:
    path = ground / "a.db"
    look = f"""
from pathlib import Path
from agent.database import open_database
database = open_database(Path({str(path)!r}), migrations=[""], readonly=True)
print(len(database.rows("SELECT * FROM a")))
database.close()
"""
    one = opened(path)
    two = opened(path)
    for number in (1, 2):
        one.execute("INSERT INTO a VALUES (?, 'x')", (number,))
        # The one who looks is not the last to close it, and must not clean up as if it were.
        assert commands.run([sys.executable, "-c", look], directory=REPOSITORY).stdout == f"{number}\n".encode()
    one.close()
    two.close()


def test_a_full_database_says_so_and_recovers(ground: Path) -> None:
    database = opened(ground / "a.db")
    pages = database.rows("PRAGMA page_count")[0][0]
    database.rows(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(Unavailable, match="the disk is full; make room"), database.transaction():
        database.execute("INSERT INTO a VALUES (1, ?)", ("x" * 100_000,))
    database.rows("PRAGMA max_page_count = 100000")
    with database.transaction():
        database.execute("INSERT INTO a VALUES (1, 'one')")
    assert len(database.rows("SELECT * FROM a")) == 1
    database.close()


def test_a_damaged_database_is_given_up(ground: Path) -> None:
    path = ground / "a.db"
    path.write_bytes(os.urandom(8192))
    with pytest.raises(Fatal, match=r"a.db is damaged \(file is not a database\)"):
        opened(path)


def test_a_python_without_sqlite_says_what_to_install() -> None:
    program = """
import sys
sys.modules["sqlite3"] = None
from agent.errors import Fatal
try:
    import agent.database
except Fatal as failure:
    print(failure)
"""
    finished = commands.run([sys.executable, "-c", program], directory=REPOSITORY)
    assert b"comes without sqlite3; install the rest of it" in finished.stdout
    assert b"apt-get install libpython3-stdlib" in finished.stdout


def test_one_that_died_while_it_was_made_is_not_there_yet(ground: Path) -> None:
    path = ground / "a.db"
    path.touch()
    with pytest.raises(NotMade, match="nothing has been set up here yet"):
        open_database(path, migrations=["CREATE TABLE a (b)"], readonly=True)
    open_database(path, migrations=["CREATE TABLE a (b)"], migrate=True).close()
    open_database(path, migrations=["CREATE TABLE a (b)"], readonly=True).close()
