"""What arrives in the control plane's queue: each message is dealt with to its end, committed, then acknowledged.

- Statements that came together are committed together. A mistake of ours over one of them costs that one.
- What can't be understood is parked (`agent.control.parking`), and never blocks the next.
- What fails because something is away (the store, the broker's management) is kept, unacknowledged, and tried again in
  the same session. It isn't given back to the queue, which gives up a message that came back too often.
- An answer to an enrolment goes out after the account works, on a connection of its own; it goes nowhere if nobody
  waits for it any more.
"""

from __future__ import annotations

import base64
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile

from agent import wire
from agent.broker import Blocked, Delivery, Lost, Message, Session
from agent.control import bounds, parking
from agent.control.accounts import Accounts
from agent.control.changing import settle
from agent.control.declaring import find_node, sign_anew
from agent.control.enrolment import REFUSAL, Deny, IssuedToken, Repeat, Request, Spend, Spending, decide, read_request
from agent.control.registry import Answer, Spoken, There, after_report, read_alive, read_report
from agent.control.signing import Keyring
from agent.control.statements import Fresh, Repeated, Speaker, judge
from agent.control.store import Store
from agent.errors import AgentError, Refused
from agent.fields import quoted

_log = logging.getLogger(__name__)

_PASSWORD_BYTES = 32
_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Done:
    """A message was dealt with."""


@dataclass(frozen=True, slots=True)
class _Park:
    """A message can't be understood."""

    why: str


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A request was accepted, which is committed; its account is to be made, then it is answered."""

    delivery: Delivery
    token: IssuedToken
    spending: Spending


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
        self._session = session
        self._store = store
        self._accounts = accounts
        self._own = own
        self._open_session = open_session
        self._clock = clock
        self._random = random
        self._parked = parked
        self._repeaters: set[str] = set()
        self._arrived: deque[Delivery] = deque()
        self._admitted: list[_Admitted] = []
        self._hindrance: AgentError | None = None
        self._retry_at = 0.0

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery in; `work` deals with it."""
        self._arrived.append(delivery)

    @property
    def waiting(self) -> int:
        """How many deliveries were taken in and not yet dealt with."""
        return len(self._arrived)

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
        if self._admitted:
            self._answer_admitted()

    def _take_request(self, delivery: Delivery) -> None:
        try:
            done = self._enrol(delivery, read_request(delivery))
        except Refused as error:
            done = _Park(str(error))
        except AgentError:
            raise
        except Exception as error:
            done = _mistaken(delivery, error)
        if isinstance(done, _Admitted):
            self._admitted.append(done)
        else:
            self._finish(delivery, done)

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

    def _finish(self, delivery: Delivery, end: _Done | _Park) -> None:
        if isinstance(end, _Park):
            self._park(delivery.message, end.why)
        self._session.ack(delivery.tag)

    def _deal_all(self, batch: Sequence[Delivery]) -> list[_Done | _Park]:
        spoken: set[str] = set()
        ends = [self._deal(delivery, spoken) for delivery in batch]
        # Who was let in and has no answer yet can't have spoken: that was whoever had the name's account before.
        for node in spoken - {one.token.node for one in self._admitted}:
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
        carried = node.carried
        node, answer = after_report(replace(node, counter=standing.counter), said, now)
        self._store.nodes.save(node)
        if said.serial is not None and not said.report.refused:
            self._store.nodes.confirm(node.name, said.serial)
        if answer is not Answer.NOTHING:
            self._send(node.name, answer, now)
        if node.carried != carried or self._store.arrangements.waits(node.name):
            settle(self._store, self._own.keys(), node.name, now)

    def _send(self, name: str, answer: Answer, now: float) -> None:
        """Send a node what it is to hold; under another signature if it may not know the one that is there."""
        node = find_node(self._store, name)
        keys = self._own.keys()
        known = self._store.declarations.signer(name) == keys.key_for(node).public
        if answer is Answer.AGAIN and known:
            self._store.declarations.send_again(name)
        else:
            sign_anew(self._store, keys, node, now)

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

    def _enrol(self, delivery: Delivery, request: Request) -> _Done | _Park | _Admitted:
        now = self._clock()
        with self._store.transaction():
            decision = decide(request, self._store.tokens.live(), now)
            spending = self._admit(decision.token, request, now) if isinstance(decision, Spend) else None
        if isinstance(decision, Deny):
            _log.info("A request to join was refused: %s.", decision.why)
            self._reply(delivery.message, wire.EnrolReply(accepted=False, refusal=decision.why))
            return _Done()
        if isinstance(decision, Repeat):
            return _Admitted(delivery, decision.token, decision.spending)
        assert spending is not None
        _log.info("%s has enrolled%s.", decision.token.node, ", in another's place" if spending.replaces else "")
        return _Admitted(delivery, decision.token, spending)

    def _admit(self, token: IssuedToken, request: Request, now: float) -> Spending:
        """Spend a token on a request, in one transaction with all that follows from it."""
        password = base64.urlsafe_b64encode(self._random(_PASSWORD_BYTES)).decode("ascii").rstrip("=")
        wanted = request.wanted
        before = self._store.nodes.speaker(token.node)
        replaces = before is not None and before.public_key != wanted.public_key
        spending = Spending(wanted.public_key, password, request.digest, replaces)
        self._store.tokens.spend(token.id, spending, now)
        self._store.tokens.forget_others(token.node, token.id)
        profile = bounds.clean_profile(wanted.profile)
        self._store.nodes.enrol(token.node, wanted.public_key, wanted.overlay_key, profile, now, signer=token.signer)
        if replaces:
            self._store.nodes.begin_anew(token.node)
        # Its address may be another one, which others refer to.
        settle(self._store, self._own.keys(), token.node, now)
        return spending

    def _answer_admitted(self) -> None:
        """Answer whoever was let in. An account that can't be made now keeps nobody else waiting."""
        if time.monotonic() >= self._retry_at:
            self._hindrance = None
            for admitted in list(self._admitted):
                try:
                    self._answer(admitted)
                except Lost:
                    raise
                except AgentError as error:
                    self._hindrance = error
                    self._retry_at = time.monotonic() + _RETRY_SECONDS
                else:
                    self._admitted.remove(admitted)
        if self._hindrance is not None:
            raise self._hindrance

    def _answer(self, admitted: _Admitted) -> None:
        token, account = admitted.token, wire.node_queue(admitted.token.node)
        if not self._store.tokens.is_kept(token.id):
            # It was dropped after it had been spent: by another token, or by a person.
            self._reply(admitted.delivery.message, wire.EnrolReply(accepted=False, refusal=REFUSAL))
            self._session.ack(admitted.delivery.tag)
            return
        if admitted.spending.replaces:
            # At once, which closing connections isn't; what waits was signed for a machine that is gone.
            self._accounts.delete_account(account)
            self._accounts.purge_queue(account)
        self._accounts.make_node(token.node, admitted.spending.password)
        # Whoever is still logged in under this name is not who has just joined.
        self._accounts.close_connections_of(account)
        self._reply(
            admitted.delivery.message,
            wire.EnrolReply(
                accepted=True,
                node=token.node,
                queue=wire.node_queue(token.node),
                password=admitted.spending.password,
                fingerprint=self._own.fingerprint,
                signer=token.signer,
                broker=token.broker,
            ),
        )
        self._session.ack(admitted.delivery.tag)

    def _reply(self, message: Message, reply: wire.EnrolReply) -> None:
        answer = Message(
            body=reply.encode(),
            routing_key=message.reply_to or "",
            correlation_id=message.correlation_id,
            timestamp=int(self._clock()),
            content_type="application/json",
        )
        # A forged address, of which RabbitMQ 3.10 believes that it made it itself, breaks the connection that
        # publishes there. So an answer has one of its own; tried twice, because that one may be lost by chance.
        for _ in range(2):
            with closing(self._open_session()) as session:
                try:
                    session.publish(answer, exchange="", mandatory=False)
                except Blocked:
                    raise
                except Lost as error:
                    _log.debug("An answer to a request to join was lost: %s", error)
                else:
                    return
        _log.warning(
            "A request to join from %s had a reply address that the broker broke over, and got no answer", _who(message)
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
            _who(message),
            wire.PARKED_QUEUE,
            reason,
        )


def _mistaken(delivery: Delivery, error: Exception) -> _Park:
    _log.error("A message as %s failed", delivery.message.routing_key, exc_info=error)
    return _Park("it led to an error in the control plane, which its log tells")


def _who(message: Message) -> str:
    return bounds.clean(message.user_id, 100) if message.user_id else "an account that it does not name"
