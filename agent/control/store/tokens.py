"""Tokens in the store, and which of them still count.

A token is over when it expired unspent, or when its node's own account has spoken. A row of one that is over
stays until the account it logged in with is gone from the broker too.
"""

from __future__ import annotations

from agent.control.enrolment import IssuedToken, Spending
from agent.database import Database, Row


class Tokens:
    """The tokens that were made and are not yet done with."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, node: str, digest: bytes, broker: str, signer: bytes, *, now: float, expires: float) -> int:
        """Record a new token; its id."""
        self._database.execute(
            "INSERT INTO token (node, digest, broker, signer, made, expires) VALUES (?, ?, ?, ?, ?, ?)",
            (node, digest, broker, signer, now, expires),
        )
        row = self._database.row("SELECT id FROM token WHERE digest = ?", (digest,))
        assert row is not None
        return int(row["id"])

    def live(self) -> tuple[IssuedToken, ...]:
        """Every token that isn't ended; an expired one among them is for its reader to refuse."""
        return tuple(_token(row) for row in self._database.rows("SELECT * FROM token WHERE ended = 0"))

    def spend(self, token: int, spending: Spending, now: float) -> None:
        """Fix who spent a token, and the password that goes with it."""
        self._database.execute(
            "UPDATE token SET spent = ?, public_key = ?, password = ?, request = ?, replaces = ? WHERE id = ?",
            (now, spending.public_key, spending.password, spending.request, spending.replaces, token),
        )

    def is_kept(self, token: int) -> bool:
        """Whether this token was not dropped."""
        return self._database.row("SELECT 1 FROM token WHERE id = ?", (token,)) is not None

    def forget_all(self, node: str) -> int:
        """Drop every token of a node; how many there were."""
        return self._database.execute("DELETE FROM token WHERE node = ?", (node,))

    def forget(self, token: int) -> None:
        """Drop one token."""
        self._database.execute("DELETE FROM token WHERE id = ?", (token,))

    def forget_others(self, node: str, keep: int) -> None:
        """Drop every other token of a node; the account they share stays for the one that is kept."""
        self._database.execute("DELETE FROM token WHERE node = ? AND id <> ?", (node, keep))

    def end_spent(self, node: str) -> bool:
        """End the token that a node joined with, and erase its password; whether there was one."""
        return bool(
            self._database.execute(
                """
                UPDATE token SET ended = 1, password = NULL
                WHERE node = ? AND spent IS NOT NULL AND ended = 0
                """,
                (node,),
            )
        )

    def nodes_over(self, now: float) -> tuple[str, ...]:
        """The nodes that have a token that is over."""
        rows = self._database.rows(
            "SELECT DISTINCT node FROM token WHERE ended = 1 OR (spent IS NULL AND expires <= ?)", (now,)
        )
        return tuple(str(row["node"]) for row in rows)

    def forget_over(self, node: str, now: float) -> bool:
        """Drop a node's tokens that are over; whether none is left, so that their account can go."""
        self._database.execute(
            "DELETE FROM token WHERE node = ? AND (ended = 1 OR (spent IS NULL AND expires <= ?))",
            (node, now),
        )
        return self._database.row("SELECT 1 FROM token WHERE node = ?", (node,)) is None


def _token(row: Row) -> IssuedToken:
    spending = (
        Spending(row["public_key"], row["password"], row["request"], bool(row["replaces"]))
        if row["spent"] is not None
        else None
    )
    return IssuedToken(
        id=row["id"],
        node=row["node"],
        digest=row["digest"],
        broker=row["broker"],
        signer=row["signer"],
        made=row["made"],
        expires=row["expires"],
        spending=spending,
    )
