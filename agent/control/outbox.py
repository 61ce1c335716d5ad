"""Sending what is due: signed declarations that the broker has not confirmed yet.

A declaration is due in the store before it is published, and until it is confirmed; so whatever dies between,
it goes out again, with the same bytes, and a node that gets it twice changes nothing the second time.

It goes by the default exchange to the node's queue, which is bound to no other (`agent.control.accounts`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from agent import wire
from agent.broker import Message, NoSuchQueue, QueueFull, Session, Unroutable
from agent.control.store import Store, Wanted

_log = logging.getLogger(__name__)


class Outbox:
    """What is to be sent from the store. `clock` gives seconds since the epoch."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._complained: set[str] = set()

    def send_due(self, session: Session, unanswered: Collection[str] = ()) -> None:
        """Publish all that is due, but nothing yet to nodes that are `unanswered`; what one node's queue doesn't take
        is tried again at the next call.
        """
        for wanted in self._store.declarations.due():
            if wanted.node in unanswered:
                continue
            try:
                session.publish(self._message(wanted), exchange="")
            except (Unroutable, NoSuchQueue, QueueFull) as error:
                if wanted.node not in self._complained:
                    self._complained.add(wanted.node)
                    _log.warning("The declaration %d for %s waits: %s", wanted.serial, wanted.node, error)
                continue
            self._complained.discard(wanted.node)
            self._store.declarations.confirm(wanted.node, wanted.serial)

    def _message(self, wanted: Wanted) -> Message:
        return Message(
            body=wire.Signed(wanted.data, wanted.signature).encode(),
            routing_key=wire.node_queue(wanted.node),
            type=wire.DECLARATION_TYPE,
            message_id=f"{wanted.node}.{wanted.serial}",
            timestamp=int(self._clock()),
            content_type="application/json",
        )
