"""Declarations in the store: signed once, kept as their exact bytes, due until the broker confirmed them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from agent.database import Database, Row

_KEPT = 20  # a node's newest ones, so that an earlier content can be gone back to


@dataclass(frozen=True, slots=True)
class Wanted:
    """A signed declaration; `declared` is when, in seconds since the epoch."""

    node: str
    serial: int
    data: bytes
    signature: bytes
    declared: float


class Declarations:
    """What each node was told to hold; its newest declaration is the wanted one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, wanted: Wanted, signer: bytes, ids: Collection[str], *, offers: bytes = b"") -> None:
        """Record a new declaration, due to be sent in place of any earlier one; `ids` are those it holds.

        `offers` is the newest key that it says to trust; `signer`'s own when it says nothing of keys.
        """
        node, serial = wanted.node, wanted.serial
        self._database.execute("UPDATE declaration SET due = 0 WHERE node = ? AND due = 1", (node,))
        self._database.execute(
            """
            INSERT INTO declaration (node, serial, data, signature, signer, offers, declared, due)
            VALUES (?, ?, ?, ?, ?, ?, ?, 1)
            """,
            (node, serial, wanted.data, wanted.signature, signer, offers or signer, wanted.declared),
        )
        for id in ids:
            self._database.execute(
                """
                INSERT INTO declared (node, id, serial) VALUES (?, ?, ?)
                ON CONFLICT (node, id) DO UPDATE SET serial = excluded.serial
                """,
                (node, id, serial),
            )
        self._database.execute(
            """
            DELETE FROM declaration WHERE node = :node AND serial NOT IN
                (SELECT serial FROM declaration WHERE node = :node ORDER BY serial DESC LIMIT :kept)
            """,
            {"node": node, "kept": _KEPT},
        )

    def wanted(self, node: str) -> Wanted | None:
        """A node's newest declaration."""
        row = self._database.row("SELECT * FROM declaration WHERE node = ? ORDER BY serial DESC LIMIT 1", (node,))
        return _wanted(row) if row else None

    def history(self, node: str) -> tuple[Wanted, ...]:
        """A node's declarations that are kept, the newest first."""
        rows = self._database.rows("SELECT * FROM declaration WHERE node = ? ORDER BY serial DESC", (node,))
        return tuple(_wanted(row) for row in rows)

    def find(self, node: str, serial: int) -> Wanted | None:
        """A node's declaration of this serial, if it is still kept."""
        row = self._database.row("SELECT * FROM declaration WHERE node = ? AND serial = ?", (node, serial))
        return _wanted(row) if row else None

    def ids(self, node: str) -> dict[str, int]:
        """Every id ever declared to a node, with the newest serial that held it."""
        rows = self._database.rows("SELECT id, serial FROM declared WHERE node = ?", (node,))
        return {row["id"]: row["serial"] for row in rows}

    def due(self) -> tuple[Wanted, ...]:
        """What is to be sent, the earliest declared first; nothing to who must first say what it holds."""
        rows = self._database.rows(
            """
            SELECT declaration.* FROM declaration JOIN node ON node.name = declaration.node
            WHERE due = 1 AND floor IS NOT NULL ORDER BY declared, node
            """
        )
        return tuple(_wanted(row) for row in rows)

    def signer(self, node: str) -> bytes | None:
        """The key that a node's newest declaration was signed with."""
        row = self._database.row("SELECT signer FROM declaration WHERE node = ? ORDER BY serial DESC LIMIT 1", (node,))
        return bytes(row["signer"]) if row else None

    def confirm(self, node: str, serial: int) -> None:
        """The broker has it."""
        self._database.execute("UPDATE declaration SET due = 0 WHERE node = ? AND serial = ?", (node, serial))

    def send_again(self, node: str) -> None:
        """The wanted declaration is due once more."""
        self._database.execute(
            """
            UPDATE declaration SET due = 1
            WHERE node = :node AND serial = (SELECT max(serial) FROM declaration WHERE node = :node)
            """,
            {"node": node},
        )


def _wanted(row: Row) -> Wanted:
    return Wanted(row["node"], row["serial"], row["data"], row["signature"], row["declared"])
