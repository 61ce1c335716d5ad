"""What `serve` leaves in the store for its readers: how long silence may last, and how much was parked."""

from __future__ import annotations

from agent.database import Database

_PATIENCE, _PARKED = "patience", "parked"
_DEFAULT_PATIENCE = 180.0  # three alives, one a minute


class Settings:
    """Single values."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def patience(self) -> float:
        """After how many seconds of silence a node is out of touch."""
        return float(self._get(_PATIENCE) or _DEFAULT_PATIENCE)

    def set_patience(self, seconds: float) -> None:
        self._set(_PATIENCE, str(seconds))

    @property
    def parked(self) -> int:
        """How many messages lie in the queue of those that could not be understood."""
        return int(self._get(_PARKED) or 0)

    def set_parked(self, count: int) -> None:
        self._set(_PARKED, str(count))

    def _get(self, name: str) -> str | None:
        row = self._database.row("SELECT value FROM setting WHERE name = ?", (name,))
        return str(row["value"]) if row else None

    def _set(self, name: str, value: str) -> None:
        if self._get(name) != value:
            self._database.execute("INSERT OR REPLACE INTO setting (name, value) VALUES (?, ?)", (name, value))
