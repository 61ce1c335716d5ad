"""The node's own record: every resource with its origins, what it binds, found or made, how far it got; and the word
that was accepted.

Each method that writes has committed when it returns (SQLite, WAL, synchronous=FULL). One agent writes; anybody may
read. Accepting commits a declaration, the key that verified it, its recovery ids and its trust in one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.database import Database, Row, open_database
from agent.errors import Refused
from agent.fields import parse_json
from agent.reconcile import Entry, Phase
from agent.resources import (
    Context,
    Origin,
    Port,
    Resource,
    Trust,
    claims,
    parse_port,
    parse_resource,
)

log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE resource (
    origin TEXT NOT NULL, id TEXT NOT NULL, source TEXT NOT NULL, position INTEGER NOT NULL,
    found INTEGER NOT NULL, stamp TEXT NOT NULL, phase TEXT NOT NULL, since REAL NOT NULL,
    PRIMARY KEY (origin, id)
) WITHOUT ROWID;
CREATE TABLE port (
    protocol TEXT NOT NULL, address TEXT NOT NULL, number INTEGER NOT NULL, origin TEXT NOT NULL, owner TEXT NOT NULL,
    PRIMARY KEY (protocol, address, number, origin, owner),
    FOREIGN KEY (origin, owner) REFERENCES resource (origin, id) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE failure (
    origin TEXT NOT NULL, id TEXT NOT NULL, why TEXT NOT NULL, since REAL NOT NULL,
    PRIMARY KEY (origin, id)
) WITHOUT ROWID;
CREATE TABLE declaration (
    only INTEGER PRIMARY KEY CHECK (only = 1), serial INTEGER NOT NULL, data BLOB NOT NULL,
    signature BLOB NOT NULL, signer BLOB NOT NULL, since REAL NOT NULL
);
CREATE TABLE recovery (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE sought (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE signer (key BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE fingerprint (pin TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE milestone (name TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID;
"""
_MIGRATIONS = (_SCHEMA,)
_RAISED = "raised"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The last accepted declaration: its exact bytes, the signature, the key that verified them, and since when."""

    serial: int
    data: bytes
    signature: bytes
    signer: bytes
    since: float


@dataclass(frozen=True, slots=True)
class Binding:
    """A host port that a resource of ours declares."""

    port: Port
    origin: Origin
    owner: str


class _RecordedBlobs:
    """A blob that was in another bundle: a recorded resource is read for what it claims, not for its content."""

    @dataclass(frozen=True, slots=True)
    class _Facts:
        sha256: str = ""
        size: int = 0

    def facts(self, name: str) -> _Facts:
        return self._Facts()

    def read(self, name: str) -> bytes:
        raise KeyError(name)


class Ledger:
    """The ledger of one state folder; fulfils `agent.reconcile.Record`. `clock` gives seconds since the epoch."""

    def __init__(self, database: Database, state: Path, clock: Callable[[], float]) -> None:
        self._database = database
        self._context = Context(state, blobs=_RecordedBlobs())
        self._clock = clock
        self._entries: dict[tuple[Origin, str], Entry] = {}
        self._failures: dict[tuple[Origin, str], str] = {}
        self._seen = -1

    def close(self) -> None:
        self._database.close()

    # What the reconciler asks.

    def entries(self, origin: Origin) -> Sequence[Entry]:
        self._refresh()
        own = [entry for (whose, _), entry in self._entries.items() if whose is origin]
        return sorted(own, key=lambda entry: entry.position)

    def entry(self, origin: Origin, id: str) -> Entry | None:
        self._refresh()
        return self._entries.get((origin, id))

    def failures(self, origin: Origin) -> Mapping[str, str]:
        self._refresh()
        return {id: why for (whose, id), why in self._failures.items() if whose is origin}

    def intend(self, origin: Origin, resource: Resource, position: int, *, found: bool) -> None:
        earlier = self.entry(origin, resource.id)
        stamp = earlier.stamp if earlier else ""
        entry = Entry(origin, resource, position, found, stamp, Phase.INTENDED, self._clock())
        with self._database.transaction():
            self._write(entry)
        self._entries[origin, resource.id] = entry

    def apply(self, origin: Origin, resource: Resource, position: int, *, found: bool, stamp: str) -> None:
        self._refresh()
        entry = Entry(origin, resource, position, found, stamp, Phase.APPLIED, self._clock())
        with self._database.transaction():
            self._write(entry)
            self._delete_failure(origin, resource.id)
        self._entries[origin, resource.id] = entry
        self._failures.pop((origin, resource.id), None)

    def fail(self, origin: Origin, id: str, why: str) -> None:
        if self.failures(origin).get(id) == why:
            return
        self._database.execute(
            "INSERT OR REPLACE INTO failure (origin, id, why, since) VALUES (?, ?, ?, ?)",
            (origin.value, id, why, self._clock()),
        )
        self._failures[origin, id] = why

    def clear(self, origin: Origin, id: str) -> None:
        if (origin, id) in self._failures:  # asked for every resource at every look; nobody else writes failures
            self._delete_failure(origin, id)
            del self._failures[origin, id]

    def leave(self, origin: Origin, id: str) -> None:
        entry = self.entry(origin, id)
        if entry:
            leaving = replace(entry, phase=Phase.LEAVING)
            with self._database.transaction():
                self._write(leaving)
            self._entries[origin, id] = leaving

    def forget(self, origin: Origin, id: str) -> None:
        self._refresh()
        with self._database.transaction():
            self._delete_resource(origin, id)
            self._delete_failure(origin, id)
        self._entries.pop((origin, id), None)
        self._failures.pop((origin, id), None)

    def forget_failures_beside(self, origin: Origin, ids: Collection[str]) -> None:
        """Failures of what is neither wanted any more nor here are over."""
        for id in self.failures(origin):
            if id not in ids and self.entry(origin, id) is None:
                self.clear(origin, id)

    # What the node states.

    def bindings(self) -> list[Binding]:
        """Every port that a resource of ours declares, whether anything listens there or not."""
        rows = self._database.rows(
            "SELECT protocol, address, number, origin, owner FROM port ORDER BY number, protocol, address, owner"
        )
        return [_binding(row) for row in rows]

    # The word.

    def accepted(self) -> Accepted | None:
        row = self._database.row("SELECT serial, data, signature, signer, since FROM declaration")
        return Accepted(*row) if row else None

    def accept(
        self,
        serial: int,
        data: bytes,
        signature: bytes,
        signer: bytes,
        recovery: Sequence[str],
        trust: Trust | None,
    ) -> None:
        """The declaration is now this node's word, in one transaction with all that came in it.

        A part of `trust` that is not empty replaces what was believed; one that is empty says nothing.
        """
        with self._database.transaction():
            self._database.execute(
                "INSERT OR REPLACE INTO declaration VALUES (1, ?, ?, ?, ?, ?)",
                (serial, data, signature, signer, self._clock()),
            )
            self._database.execute("DELETE FROM recovery")
            self._database.execute("DELETE FROM sought")
            for id in recovery:
                self._database.execute("INSERT OR IGNORE INTO recovery VALUES (?)", (id,))
            if trust and trust.signers:
                self._believe_signers(trust.signers)
            if trust and trust.fingerprints:
                self._believe_pins(trust.fingerprints)

    def assigned_or_recovered(self) -> frozenset[str]:
        """The ids that are the mesh's here, by the ledger or by the last recovery copy."""
        rows = self._database.rows(
            "SELECT id FROM resource WHERE origin = ? UNION SELECT id FROM recovery", (Origin.ASSIGNED.value,)
        )
        return frozenset(row[0] for row in rows)

    def unsought(self) -> tuple[str, ...]:
        """The ids of the last recovery copy that were not looked for yet."""
        rows = self._database.rows("SELECT id FROM recovery EXCEPT SELECT id FROM sought ORDER BY id")
        return tuple(row[0] for row in rows)

    def note_sought(self, id: str) -> None:
        """This one was looked for."""
        self._database.execute("INSERT OR IGNORE INTO sought VALUES (?)", (id,))

    def trust(self) -> Trust:
        """Whom the accepted declarations said to believe; empty parts where they said nothing."""
        signers = tuple(row[0] for row in self._database.rows("SELECT key FROM signer ORDER BY key"))
        pins = tuple(row[0] for row in self._database.rows("SELECT pin FROM fingerprint ORDER BY pin"))
        return Trust(signers, pins)

    def begin_anew(self, *, keep_serial: bool) -> None:
        """After joining by a new token: its word about trust replaces what was sent; the ledger's resources stay.

        Without `keep_serial` any serial is accepted next, because the signer is not the one that counted so far.
        """
        with self._database.transaction():
            self._believe_signers(())
            self._believe_pins(())
            if not keep_serial:
                self._database.execute("UPDATE declaration SET serial = 0")

    # Milestones.

    def raised_once(self) -> bool:
        """Whether all of the carried resources were once raised here."""
        return self._database.row("SELECT 1 FROM milestone WHERE name = ?", (_RAISED,)) is not None

    def note_raised(self) -> None:
        if not self.raised_once():
            self._database.execute("INSERT INTO milestone VALUES (?, ?)", (_RAISED, self._clock()))

    def _believe_signers(self, signers: Sequence[bytes]) -> None:
        self._database.execute("DELETE FROM signer")
        for signer in signers:
            self._database.execute("INSERT OR IGNORE INTO signer VALUES (?)", (signer,))

    def _believe_pins(self, pins: Sequence[str]) -> None:
        self._database.execute("DELETE FROM fingerprint")
        for pin in pins:
            self._database.execute("INSERT OR IGNORE INTO fingerprint VALUES (?)", (pin,))

    def _write(self, entry: Entry) -> None:
        key = (entry.origin.value, entry.resource.id)
        self._delete_resource(entry.origin, entry.resource.id)
        self._database.execute(
            "INSERT INTO resource VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *key,
                entry.resource.source,
                entry.position,
                entry.found,
                entry.stamp,
                entry.phase.value,
                entry.since,
            ),
        )
        for port in claims(entry.resource).ports:
            self._database.execute(
                "INSERT INTO port VALUES (?, ?, ?, ?, ?)", (port.protocol, port.address, port.number, *key)
            )

    def _delete_resource(self, origin: Origin, id: str) -> None:
        self._database.execute("DELETE FROM resource WHERE origin = ? AND id = ?", (origin.value, id))

    def _delete_failure(self, origin: Origin, id: str) -> None:
        self._database.execute("DELETE FROM failure WHERE origin = ? AND id = ?", (origin.value, id))

    def _refresh(self) -> None:
        """Read the tables again if another connection wrote; a thousand unchanged resources are parsed once."""
        version = self._database.data_version()
        if version == self._seen:
            return
        known = {(entry.origin, entry.resource.source): entry.resource for entry in self._entries.values()}
        self._entries = {}
        for row in self._database.rows("SELECT origin, id, source, position, found, stamp, phase, since FROM resource"):
            origin = Origin(row["origin"])
            resource = known.get((origin, row["source"])) or self._parse(row["id"], row["source"])
            if resource is None:
                continue
            self._entries[origin, resource.id] = Entry(
                origin=origin,
                resource=resource,
                position=row["position"],
                found=bool(row["found"]),
                stamp=row["stamp"],
                phase=Phase(row["phase"]),
                since=row["since"],
            )
        rows = self._database.rows("SELECT origin, id, why FROM failure")
        self._failures = {(Origin(row["origin"]), row["id"]): row["why"] for row in rows}
        self._seen = version

    def _parse(self, id: str, source: str) -> Resource | None:
        try:
            return parse_resource(parse_json(source.encode("utf-8")), "ledger", self._context)
        except Refused as error:
            log.error("what the ledger holds of %s cannot be read by this agent, so it is left alone: %s", id, error)
            return None


def open_ledger(state: Path, clock: Callable[[], float], *, write: bool) -> Ledger:
    """The ledger of a state folder; made and migrated by who may write. Refused when there is none to read."""
    database = open_database(state / "ledger.db", migrations=_MIGRATIONS, migrate=write, readonly=not write)
    return Ledger(database, state, clock)


def _binding(row: Row) -> Binding:
    address = f"[{row['address']}]" if ":" in row["address"] else row["address"]
    port = parse_port(f"{address}:{row['number']}/{row['protocol']}", "ledger")
    return Binding(port, Origin(row["origin"]), row["owner"])
