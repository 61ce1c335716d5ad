"""Signing keys in the store: their public halves, by number. The private ones are files
(`agent.control.signing`).
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.database import Database


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that declarations were signed with; numbers grow."""

    number: int
    public_key: bytes


class Signers:
    """The keys that this control plane has signed with."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> tuple[Signer, ...]:
        """Every key, the newest last."""
        rows = self._database.rows("SELECT number, public_key FROM signer ORDER BY number")
        return tuple(Signer(row["number"], row["public_key"]) for row in rows)

    def add(self, signer: Signer, now: float) -> None:
        self._database.execute(
            "INSERT INTO signer (number, public_key, made) VALUES (?, ?, ?)",
            (signer.number, signer.public_key, now),
        )
