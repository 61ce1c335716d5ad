"""What a node states is signed, with a counter, by the key that it enrolled with (`agent.wire.statement_bytes`)."""

from __future__ import annotations

import base64
from dataclasses import replace

from agent.broker import Message
from agent.node.identity import Identity
from agent.wire import COUNTER_HEADER, SERIAL_HEADER, SIGNATURE_HEADER, statement_bytes


def signed(statement: Message, identity: Identity) -> Message:
    """A statement with its counter and signature; it is signed as it is, its serial included."""
    counter, serial = identity.next_counter(), statement.headers.get(SERIAL_HEADER)
    said = statement_bytes(statement.routing_key, counter, serial if isinstance(serial, int) else None, statement.body)
    signature = base64.b64encode(identity.signing_key().sign(said)).decode("ascii")
    return replace(statement, headers={**statement.headers, COUNTER_HEADER: counter, SIGNATURE_HEADER: signature})
