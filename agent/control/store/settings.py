"""Single values in the store: what `serve` leaves there for its readers, and where host ports are taken from."""

from __future__ import annotations

from agent.control.ports import USUAL_RANGE, PortRange, parse_range
from agent.database import Database

_PATIENCE, _PARKED, _SERVED = "patience", "parked", "served"
_PORT_RANGE, _PINS, _PINNED = "port range", "pins", "pinned"
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

    @property
    def served(self) -> bool:
        """Whether the control queue was read long enough to have outlived any loss of power since it was made."""
        return self._get(_SERVED) == "yes"

    def set_served(self, served: bool) -> None:
        self._set(_SERVED, "yes" if served else "no")

    @property
    def port_range(self) -> PortRange:
        """Where the host ports of assignments are taken from."""
        told = self._get(_PORT_RANGE)
        return parse_range(told) if told else USUAL_RANGE

    def set_port_range(self, within: PortRange) -> None:
        self._set(_PORT_RANGE, str(within))

    @property
    def pins(self) -> tuple[str, ...]:
        """What nodes are told to know the broker by, the newest last; empty before any renewal, when tokens say it."""
        return tuple((self._get(_PINS) or "").split())

    @property
    def pinned(self) -> float:
        """When these came to be the pins, in seconds since the epoch; 0 before any renewal."""
        return float(self._get(_PINNED) or 0)

    def set_pins(self, pins: tuple[str, ...], now: float) -> None:
        if pins != self.pins:
            self._set(_PINS, " ".join(pins))
            self._set(_PINNED, str(now))

    def _get(self, name: str) -> str | None:
        row = self._database.row("SELECT value FROM setting WHERE name = ?", (name,))
        return str(row["value"]) if row else None

    def _set(self, name: str, value: str) -> None:
        if self._get(name) != value:
            self._database.execute("INSERT OR REPLACE INTO setting (name, value) VALUES (?, ?)", (name, value))
