"""Signing keys in the store: their public halves, by number. The private ones are files
(`agent.control.signing`).
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.database import Database


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that declarations are signed with, or were until it was retired; numbers grow. `made` in seconds since the
    epoch.
    """

    number: int
    public_key: bytes
    made: float
    retired: bool = False


class Signers:
    """The keys that this control plane has signed with."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> tuple[Signer, ...]:
        """Every key, the newest last."""
        rows = self._database.rows("SELECT number, public_key, made, retired FROM signer ORDER BY number")
        return tuple(Signer(row["number"], row["public_key"], row["made"], bool(row["retired"])) for row in rows)

    def add(self, signer: Signer) -> None:
        self._database.execute(
            "INSERT INTO signer (number, public_key, made) VALUES (?, ?, ?)",
            (signer.number, signer.public_key, signer.made),
        )

    def retire(self, number: int) -> None:
        """Nothing is signed with this one any more."""
        self._database.execute("UPDATE signer SET retired = 1 WHERE number = ?", (number,))
