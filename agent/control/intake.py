"""What arrives in the control plane's queue: each message is dealt with to its end, committed, then acknowledged.

- Statements that came together are committed together. A mistake of ours over one of them costs that one.
- What can't be understood is parked (`agent.control.parking`), and never blocks the next.
- What fails because something is away (the store, the broker's management) is kept, unacknowledged, and tried again in
  the same session. It isn't given back to the queue, which gives up a message that came back too often.
- Who asks to join is let in or not by `agent.control.admission`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from agent import wire
from agent.broker import Delivery, Message, Session
from agent.control import bounds, parking
from agent.control.accounts import Accounts
from agent.control.admission import Admission
from agent.control.changing import settle
from agent.control.declaring import find_node, sign_anew
from agent.control.enrolment import read_request
from agent.control.registry import Answer, Spoken, There, after_report, read_alive, read_report
from agent.control.signing import Keyring
from agent.control.statements import Fresh, Repeated, Speaker, judge
from agent.control.store import Store
from agent.errors import AgentError, Refused
from agent.fields import quoted

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Done:
    """A message was dealt with."""


@dataclass(frozen=True, slots=True)
class _Park:
    """A message can't be understood."""

    why: str


@dataclass(frozen=True, slots=True)
class Own:
    """The control plane itself: its keys, pin and account, and what it asks of nodes."""

    keys: Callable[[], Keyring]
    fingerprint: str
    account: str
    require_signatures: bool


class Intake:
    """Deals with what arrives in one session. `clock` gives seconds since the epoch, `random` that many
    random bytes.

    `open_session` opens another session, for answers. `parked` is called for each message that was put aside.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        accounts: Accounts,
        own: Own,
        *,
        open_session: Callable[[], Session],
        clock: Callable[[], float],
        random: Callable[[int], bytes],
        parked: Callable[[], None],
    ) -> None:
        self._admission = Admission(
            session,
            store,
            accounts,
            keys=own.keys,
            fingerprint=own.fingerprint,
            open_session=open_session,
            clock=clock,
            random=random,
        )
        self._session = session
        self._store = store
        self._own = own
        self._clock = clock
        self._random = random
        self._parked = parked
        self._repeaters: set[str] = set()
        self._arrived: deque[Delivery] = deque()

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery in; `work` deals with it."""
        self._arrived.append(delivery)

    @property
    def waiting(self) -> int:
        """How many deliveries were taken in and not yet dealt with."""
        return len(self._arrived)

    @property
    def unanswered(self) -> frozenset[str]:
        """The nodes that were let in and have no answer yet, so that their queue may be another's still."""
        return self._admission.unanswered

    def work(self) -> None:
        """Deal with all that has arrived, in its order.

        Unavailable when something has to be there first: what isn't dealt with stays for the next call. Lost
        when the session is over: it comes again in the next one.
        """
        while self._arrived:
            if self._arrived[0].message.routing_key == wire.ENROL:
                self._take_request(self._arrived[0])
                self._arrived.popleft()
            else:
                self._take_statements()
        self._admission.answer()

    def _take_request(self, delivery: Delivery) -> None:
        try:
            self._admission.take(delivery, read_request(delivery))
        except Refused as error:
            self._put_aside(delivery, _Park(str(error)))
        except AgentError:
            raise
        except Exception as error:
            self._put_aside(delivery, _mistaken(delivery, error))

    def _take_statements(self) -> None:
        """Deal with what has arrived up to the next request, in one transaction."""
        batch = list(takewhile(lambda one: one.message.routing_key != wire.ENROL, self._arrived))
        try:
            with self._store.transaction():
                ends = self._deal_all(batch)
        except AgentError:
            raise
        except Exception:
            # A mistake of ours must not stop everybody else's messages.
            ends = [self._deal_alone(delivery) for delivery in batch]
        for delivery, end in zip(batch, ends, strict=True):
            if isinstance(end, _Park):
                self._park(delivery.message, end.why)
        self._session.ack(*(delivery.tag for delivery in batch))
        for _ in batch:
            self._arrived.popleft()

    def _deal_alone(self, delivery: Delivery) -> _Done | _Park:
        try:
            with self._store.transaction():
                return self._deal_all([delivery])[0]
        except AgentError:
            raise
        except Exception as error:
            return _mistaken(delivery, error)

    def _put_aside(self, delivery: Delivery, end: _Park) -> None:
        self._park(delivery.message, end.why)
        self._session.ack(delivery.tag)

    def _deal_all(self, batch: Sequence[Delivery]) -> list[_Done | _Park]:
        spoken: set[str] = set()
        ends = [self._deal(delivery, spoken) for delivery in batch]
        # Who was let in and has no answer yet can't have spoken: that was whoever had the name's account before.
        for node in spoken - self._admission.unanswered:
            if self._store.tokens.end_spent(node):
                _log.info("%s is there.", node)
        return ends

    def _deal(self, delivery: Delivery, spoken: set[str]) -> _Done | _Park:
        """Deal with one statement, inside a transaction; who says something that counts has `spoken`."""
        message = delivery.message
        if message.routing_key == wire.CONTROL_QUEUE and message.user_id == self._own.account:
            message = parking.restored(message)
        try:
            if message.routing_key == wire.ALIVE:
                said: There | Spoken = read_alive(message)
            elif message.routing_key == wire.REPORT:
                said = read_report(message)
            else:
                return _Park(f"nothing is known that arrives as {quoted(message.routing_key)}")
            speaker = self._store.nodes.speaker(said.node)
            if speaker is None:
                return _Park("no node of this name has enrolled")
            serial = said.serial if isinstance(said, Spoken) else None
            standing = judge(message, serial, speaker, required=self._own.require_signatures)
        except Refused as error:
            return _Park(str(error))
        if isinstance(standing, Repeated):
            self._note_repeat(said.node, delivery, speaker)
            return _Done()
        if isinstance(said, Spoken):
            self._hear(said, standing)
        else:
            now = self._clock()
            offset = None if said.at is None else said.at - now
            self._store.nodes.touch(said.node, standing.counter, offset, now)
        spoken.add(said.node)
        return _Done()

    def _hear(self, said: Spoken, standing: Fresh) -> None:
        now = self._clock()
        node = self._store.nodes.get(said.node)
        assert node is not None
        before = node
        node, answer = after_report(replace(node, counter=standing.counter), said, now)
        self._store.nodes.save(node)
        if said.serial is not None and not said.report.refused and said.serial in (0, node.holds):
            self._store.nodes.confirm(node.name, said.serial)
        if answer is not Answer.NOTHING:
            self._send(node.name, answer, now)
        moved = (node.carried, node.profile) != (before.carried, before.profile)
        if moved or self._store.arrangements.waits(node.name):
            settle(self._store, self._own.keys(), node.name, now)

    def _send(self, name: str, answer: Answer, now: float) -> None:
        """Send a node what it is to hold; under another signature if it may not know the one that is there."""
        node = find_node(self._store, name)
        keys = self._own.keys()
        known = self._store.declarations.signer(name) == keys.key_for(node).public
        if answer is Answer.AGAIN and known:
            self._store.declarations.send_again(name)
            return
        try:
            sign_anew(self._store, keys, node, now)
        except Refused as error:  # what one node can't be told keeps nobody else waiting
            _log.warning("What %s is to hold can't be declared to it again: %s", name, error)

    def _note_repeat(self, node: str, delivery: Delivery, speaker: Speaker) -> None:
        # One that the broker hands over again was ours to forget; any other needs a person.
        if not delivery.redelivered and node not in self._repeaters:
            self._repeaters.add(node)
            _log.warning(
                "%s repeats what it said before (up to statement %d), which does not count; if its state folder came "
                "from a backup, have it join again with a token from `agent control token create %s --replace`",
                node,
                speaker.counter,
                node,
            )

    def _park(self, message: Message, why: str) -> None:
        if message.routing_key == wire.CONTROL_QUEUE and message.user_id == self._own.account:
            message = parking.restored(message)
        reason = bounds.clean(why, bounds.LONGEST_REASON)
        self._session.publish(
            parking.parked(message, reason, now=self._clock(), random=self._random),
            exchange="",
        )
        self._parked()
        _log.warning(
            "A message for %s from %s was put aside in %s: %s",
            bounds.clean(message.routing_key, 100),
            bounds.account(message.user_id),
            wire.PARKED_QUEUE,
            reason,
        )


def _mistaken(delivery: Delivery, error: Exception) -> _Park:
    _log.error("A message as %s failed", delivery.message.routing_key, exc_info=error)
    return _Park("it led to an error in the control plane, which its log tells")
