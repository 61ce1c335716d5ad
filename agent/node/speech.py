"""What a node states: that it is there, what it holds, what it refuses. All of it is signed, with a counter, by the key
that it enrolled with (`agent.wire.statement_bytes`).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import replace

from agent import __version__
from agent.broker import Message, Session
from agent.host import machine
from agent.node.identity import Identity
from agent.node.ledger import Ledger
from agent.node.life import Node
from agent.node.origins import carried_ports
from agent.node.trust import Refusal
from agent.resources import Origin
from agent.wire import (
    ADDRESS_HEADER,
    ALIVE,
    COUNTER_HEADER,
    EXCHANGE,
    REPORT,
    SERIAL_HEADER,
    SIGNATURE_HEADER,
    VERSION_HEADER,
    Alive,
    Report,
    node_queue,
    statement_bytes,
)

_LONGEST_REASON = 1000


class Speech:
    """One node's statements, each published in the session that is given."""

    def __init__(self, node: Node, ledger: Ledger) -> None:
        self._node = node
        self._ledger = ledger
        self._name = node.myself.name

    def say_alive(self, session: Session, interval: float) -> None:
        """That it is there; nobody hears it later than `interval` seconds."""
        self._state(session, ALIVE, Alive(self._name).encode(), {}, expiration=interval)

    def report(self, session: Session, own_failure: Mapping[str, str]) -> None:
        """What it holds and carries, what of it failed, and `own_failure`, which is no resource's."""
        failed = {
            **self._ledger.failures(Origin.CARRIED),
            **self._ledger.failures(Origin.ASSIGNED),
            **own_failure,
        }
        report = Report(
            node=self._name,
            applied=tuple(entry.resource.id for entry in self._ledger.entries(Origin.ASSIGNED)),
            failed={id: why[:_LONGEST_REASON] for id, why in failed.items()},
            carried=tuple(carried_ports(self._node.substrate, self._ledger)),
        )
        accepted = self._ledger.accepted()
        headers: dict[str, str | int] = {SERIAL_HEADER: accepted.serial if accepted else 0}
        address = machine.primary_address()
        if address:
            headers[ADDRESS_HEADER] = address
        self._state(session, REPORT, report.encode(), headers)

    def refuse(self, session: Session, refusal: Refusal) -> None:
        """That it refuses a declaration."""
        report = Report(self._name, refused=refusal.why[:_LONGEST_REASON])
        headers: dict[str, str | int] = {} if refusal.serial is None else {SERIAL_HEADER: refusal.serial}
        self._state(session, REPORT, report.encode(), headers)

    def _state(
        self,
        session: Session,
        key: str,
        body: bytes,
        headers: Mapping[str, str | int],
        *,
        expiration: float | None = None,
    ) -> None:
        statement = Message(
            body,
            routing_key=key,
            user_id=node_queue(self._name),
            headers={VERSION_HEADER: __version__, **headers},
            timestamp=int(time.time()),
            expiration=expiration,
        )
        session.publish(_signed(statement, self._node.identity), exchange=EXCHANGE)


def _signed(statement: Message, identity: Identity) -> Message:
    """A statement with its counter and signature; it is signed as it is, its serial included."""
    counter, serial = identity.next_counter(), statement.headers.get(SERIAL_HEADER)
    said = statement_bytes(statement.routing_key, counter, serial if isinstance(serial, int) else None, statement.body)
    signature = base64.b64encode(identity.signing_key().sign(said)).decode("ascii")
    return replace(statement, headers={**statement.headers, COUNTER_HEADER: counter, SIGNATURE_HEADER: signature})
