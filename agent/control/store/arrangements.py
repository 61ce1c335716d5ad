"""What is arranged for each node, in the store: as it is now, and as it was for each declaration that is kept."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from agent.control.assigning import Arrangement, Assignment, OwnList, Released
from agent.control.ports import HostPort, read_port
from agent.database import Database
from agent.fields import Fields, JsonValue, canonical, parse_json
from agent.resources import read_document

SCHEMA = """
CREATE TABLE arrangement (
    node TEXT PRIMARY KEY REFERENCES node (name) ON DELETE CASCADE,
    content TEXT NOT NULL,
    uses TEXT NOT NULL,
    waits INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE arranged (
    node TEXT NOT NULL,
    serial INTEGER NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (node, serial),
    FOREIGN KEY (node, serial) REFERENCES declaration (node, serial) ON DELETE CASCADE
) WITHOUT ROWID;
"""
# Which secrets of the mesh each of it uses; before there were any, none.
SECRETS = """
ALTER TABLE arrangement ADD COLUMN secrets TEXT NOT NULL DEFAULT '{}';
"""


class Arrangements:
    """The arrangement of each node; a node for which nothing was ever arranged has an empty one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, node: str) -> Arrangement:
        row = self._database.row("SELECT content FROM arrangement WHERE node = ?", (node,))
        return _decode(row["content"]) if row else Arrangement()

    def all(self) -> dict[str, Arrangement]:
        """Every arrangement, by node."""
        rows = self._database.rows("SELECT node, content FROM arrangement ORDER BY node")
        return {row["node"]: _decode(row["content"]) for row in rows}

    def save(
        self,
        node: str,
        arrangement: Arrangement,
        uses: Collection[str],
        secrets: Mapping[str, tuple[str, ...]],
        *,
        waits: bool,
    ) -> None:
        """Record a node's arrangement; `uses` are the nodes that it refers to, `waits` whether some of it is yet to be
        declared. `secrets` are the mesh's that it uses, each with the assignments that do ("": the node's own list).
        """
        used = canonical({name: list(users) for name, users in secrets.items()})
        self._database.execute(
            "INSERT OR REPLACE INTO arrangement (node, content, uses, secrets, waits) VALUES (?, ?, ?, ?, ?)",
            (node, canonical(_encode(arrangement)), json.dumps(sorted(uses)), used, waits),
        )

    def users_of(self, node: str) -> tuple[str, ...]:
        """The other nodes whose arrangement refers to this one."""
        rows = self._database.rows("SELECT node, uses FROM arrangement WHERE uses <> '[]' ORDER BY node")
        return tuple(str(row["node"]) for row in rows if node in json.loads(row["uses"]))

    def users_of_secret(self, name: str) -> dict[str, tuple[str, ...]]:
        """Which assignments ("": the node's own list) of which nodes use a secret of the mesh, by node."""
        rows = self._database.rows("SELECT node, secrets FROM arrangement WHERE secrets <> '{}' ORDER BY node")
        used = {row["node"]: Fields(parse_json(row["secrets"].encode("utf-8"))).texts(name, ()) for row in rows}
        return {node: users for node, users in used.items() if users}

    def waits(self, node: str) -> bool:
        """Whether some of a node's arrangement is yet to be declared."""
        return bool(self._database.row("SELECT 1 FROM arrangement WHERE node = ? AND waits = 1", (node,)))

    def keep(self, node: str, serial: int) -> None:
        """Keep a node's arrangement as what its declaration of this serial came of."""
        self._database.execute(
            """
            INSERT OR REPLACE INTO arranged (node, serial, content)
            SELECT node, ?, content FROM arrangement WHERE node = ?
            """,
            (serial, node),
        )

    def kept(self, node: str, serial: int) -> Arrangement | None:
        """What a declaration came of; None when that is not known."""
        row = self._database.row("SELECT content FROM arranged WHERE node = ? AND serial = ?", (node, serial))
        return _decode(row["content"]) if row else None


def _encode(arrangement: Arrangement) -> dict[str, JsonValue]:
    own = arrangement.own
    return {
        "own": None
        if own is None
        else {
            "params": dict(own.document.params),
            "resource": [Fields(item).values() for item in own.document.items],
            "settings": dict(own.settings),
        },
        "assignments": [
            {
                "name": one.name,
                "module": one.module,
                "version": one.version,
                "settings": dict(one.settings),
                "ports": {name: str(port) for name, port in one.ports.items()},
                "holders": list(one.holders),
                "declared": one.declared,
            }
            for one in arrangement.assignments
        ],
        "released": [
            {
                "port": str(one.port),
                "assignment": one.assignment,
                "serial": one.serial,
                "holders": list(one.holders),
            }
            for one in arrangement.released
        ],
    }


def _decode(content: str) -> Arrangement:
    fields = Fields(parse_json(content.encode("utf-8")))
    own = fields.table("own")
    return Arrangement(
        own=OwnList(read_document(own), own.text_table("settings")) if own else None,
        assignments=fields.each("assignments", (), lambda item, _: _assignment(Fields(item))),
        released=fields.each("released", (), lambda item, _: _released(Fields(item))),
    )


def _assignment(fields: Fields) -> Assignment:
    return Assignment(
        name=fields.text("name"),
        module=fields.text("module"),
        version=fields.integer("version"),
        settings=fields.text_table("settings"),
        ports=_ports(fields.text_table("ports")),
        holders=fields.texts("holders"),
        declared=fields.flag("declared"),
    )


def _ports(texts: Mapping[str, str]) -> dict[str, HostPort]:
    return {name: read_port(text) for name, text in texts.items()}


def _released(fields: Fields) -> Released:
    return Released(
        port=read_port(fields.text("port")),
        assignment=fields.text("assignment"),
        serial=fields.integer("serial"),
        holders=fields.texts("holders"),
    )
