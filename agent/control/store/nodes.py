"""Nodes in the store: one row each, as `agent.control.registry.Node` has them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from agent.control.registry import Node, Refusal
from agent.control.statements import Speaker
from agent.database import Database, Row
from agent.fields import Fields, JsonValue, canonical, parse_json

_NODE = """
SELECT node.*, coalesce((SELECT max(serial) FROM declaration WHERE declaration.node = node.name), 0) AS wanted
FROM node
"""


class Nodes:
    """The nodes that have enrolled."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str) -> Node | None:
        row = self._database.row(f"{_NODE} WHERE name = ?", (name,))
        return _node(row) if row else None

    def all(self) -> tuple[Node, ...]:
        """Every node, by name."""
        return tuple(_node(row) for row in self._database.rows(f"{_NODE} ORDER BY name"))

    def names(self) -> tuple[str, ...]:
        return tuple(str(row["name"]) for row in self._database.rows("SELECT name FROM node ORDER BY name"))

    def enrol(
        self,
        name: str,
        public_key: bytes,
        overlay_key: bytes,
        profile: Mapping[str, JsonValue],
        now: float,
        *,
        signer: bytes = b"",
    ) -> None:
        """Record a node's keys and profile; of one that joins again, everything else stays.

        `signer` is the key of ours that its token named, and that it trusts from now on.
        """
        self._database.execute(
            """
            INSERT INTO node (name, public_key, overlay_key, profile, enrolled, joined_under, confirmed)
            VALUES (?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (name) DO UPDATE SET public_key = excluded.public_key, counter = 0,
                joined_under = excluded.joined_under, confirmed = excluded.confirmed,
                overlay_key = excluded.overlay_key, profile = excluded.profile, enrolled = excluded.enrolled
            """,
            (name, public_key, overlay_key, canonical(dict(profile)), now, signer, signer),
        )

    def confirm(self, name: str, serial: int) -> None:
        """A node holds the declaration of this serial, and trusts what that one says; 0: what its token said."""
        if serial == 0:
            # A node that trusted no more than a key that counts no longer would be lost in any case.
            self._database.execute(
                """
                UPDATE node SET confirmed = joined_under WHERE name = ?
                    AND joined_under IN (SELECT public_key FROM signer WHERE retired = 0)
                """,
                (name,),
            )
            return
        self._database.execute(
            """
            UPDATE node SET confirmed =
                coalesce((SELECT offers FROM declaration WHERE node = :name AND serial = :serial), confirmed)
            WHERE name = :name
            """,
            {"name": name, "serial": serial},
        )

    def begin_anew(self, name: str) -> None:
        """Forget what only the machine itself could have said, which another one has taken the place of.

        What it held stays, as the other's recovery copy.
        """
        self._database.execute(
            """
            UPDATE node SET version = '', last_seen = NULL, clock_offset = NULL, reported = NULL, reported_at = NULL,
                carried = '[]', failures = '{}', refusal = NULL, refusal_serial = NULL, refusal_at = NULL
            WHERE name = ?
            """,
            (name,),
        )

    def forget_trust(self, name: str) -> None:
        """What it was told so far of keys and pins counts for nothing any more, whatever serial it reports of that."""
        self._database.execute(
            """
            UPDATE node SET floor = max(floor, coalesce(reported, 0),
                coalesce((SELECT max(serial) FROM declaration WHERE declaration.node = node.name), 0))
            WHERE name = ?
            """,
            (name,),
        )

    def doubt_serials(self) -> None:
        """What nodes hold by now is unknown, whatever they have reported."""
        self._database.execute("UPDATE node SET floor = NULL")

    def remove(self, name: str) -> None:
        """Drop a node with all that was declared to it."""
        self._database.execute("DELETE FROM node WHERE name = ?", (name,))

    def speaker(self, name: str) -> Speaker | None:
        """What a node's statements are judged by; None when there is no such node."""
        row = self._database.row("SELECT public_key, counter FROM node WHERE name = ?", (name,))
        return Speaker(row["public_key"], row["counter"]) if row else None

    def touch(self, name: str, counter: int, clock_offset: float | None, now: float) -> None:
        """Set when a node was last seen, never back, with the counter and clock of the alive that told it."""
        self._database.execute(
            """
            UPDATE node SET last_seen = max(coalesce(last_seen, ?), ?), counter = ?, clock_offset = ? WHERE name = ?
            """,
            (now, now, counter, clock_offset, name),
        )

    def save(self, node: Node) -> None:
        """Write all that statements change of a node."""
        refusal = node.refusal
        self._database.execute(
            """
            UPDATE node SET profile = ?, version = ?, last_seen = ?, reported = ?, reported_at = ?, holdings = ?,
                holdings_serial = ?, carried = ?, failures = ?, refusal = ?, refusal_serial = ?,
                refusal_at = ?, counter = ?, floor = ?
            WHERE name = ?
            """,
            (
                canonical(dict(node.profile)),
                node.version,
                node.last_seen,
                node.reported,
                node.reported_at,
                json.dumps(node.holdings),
                node.holdings_serial,
                json.dumps(node.carried),
                json.dumps(dict(node.failures)),
                refusal.why if refusal else None,
                refusal.serial if refusal else None,
                refusal.at if refusal else None,
                node.counter,
                node.floor,
                node.name,
            ),
        )


def _node(row: Row) -> Node:
    kept = Fields({name: parse_json(row[name].encode()) for name in ("profile", "holdings", "carried", "failures")})
    profile = kept.table("profile")
    return Node(
        name=row["name"],
        public_key=row["public_key"],
        enrolled=row["enrolled"],
        confirmed=row["confirmed"],
        counter=row["counter"],
        clock_offset=row["clock_offset"],
        overlay_key=row["overlay_key"],
        profile=profile.values() if profile else {},
        version=row["version"],
        last_seen=row["last_seen"],
        wanted=row["wanted"],
        reported=row["reported"],
        reported_at=row["reported_at"],
        holdings=kept.texts("holdings"),
        holdings_serial=row["holdings_serial"],
        carried=kept.integers("carried"),
        failures=kept.text_table("failures"),
        refusal=Refusal(row["refusal"], row["refusal_serial"], row["refusal_at"])
        if row["refusal"] is not None
        else None,
        floor=row["floor"],
    )
