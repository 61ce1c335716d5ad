"""What arrives in the control plane's queue: each message is dealt with to its end, committed, then acknowledged.

- What can't be understood is parked with the reason, its properties as headers, and never blocks the next. Of
  an enrolment no body is kept, because it may hold a secret.
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
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from agent import wire
from agent.broker import Blocked, Delivery, Lost, Message, Session
from agent.control import bounds
from agent.control.accounts import Accounts
from agent.control.declaring import sign_anew
from agent.control.enrolment import Deny, IssuedToken, Repeat, Request, Spend, Spending, decide, read_request
from agent.control.registry import Answer, Spoken, after_report, read_alive, read_report
from agent.control.store import Store
from agent.envelope import SigningKey
from agent.errors import AgentError, Refused
from agent.fields import quoted

_log = logging.getLogger(__name__)

_PASSWORD_BYTES = 32
_MOST_HEADERS, _LONGEST_HEADER = 50, 1_000
_LONGEST_NAME = 60  # of at most four bytes each: a header's name has room for 255 (AMQP 0-9-1, 4.2.5.3)
_LARGEST_PARKED = 256 * 1024
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
    password: str = field(repr=False)


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
        key: SigningKey,
        fingerprint: str,
        *,
        open_session: Callable[[], Session],
        clock: Callable[[], float],
        random: Callable[[int], bytes],
        parked: Callable[[], None],
    ) -> None:
        self._session = session
        self._store = store
        self._accounts = accounts
        self._key = key
        self._fingerprint = fingerprint
        self._open_session = open_session
        self._clock = clock
        self._random = random
        self._parked = parked
        self._arrived: deque[Delivery] = deque()
        self._admitted: list[_Admitted] = []
        self._hindrance: AgentError | None = None
        self._retry_at = 0.0

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery in; `work` deals with it."""
        self._arrived.append(delivery)

    def work(self) -> None:
        """Deal with all that has arrived, in its order.

        Unavailable when something has to be there first: what isn't dealt with stays for the next call. Lost
        when the session is over: it comes again in the next one.
        """
        while self._arrived:
            self._take(self._arrived[0])
            self._arrived.popleft()
        if self._admitted:
            self._answer_admitted()

    def _take(self, delivery: Delivery) -> None:
        try:
            done = self._deal(delivery)
        except Refused as error:
            done = _Park(str(error))
        except AgentError:
            raise
        except Exception:
            # A mistake of ours must not stop everybody else's messages.
            _log.exception("A message as %s failed", delivery.message.routing_key)
            done = _Park("it led to an error in the control plane, which its log tells")
        if isinstance(done, _Admitted):
            self._admitted.append(done)
            return
        if isinstance(done, _Park):
            self._park(delivery.message, done.why)
        self._session.ack(delivery.tag)

    def _deal(self, delivery: Delivery) -> _Done | _Park | _Admitted:
        message = delivery.message
        try:
            if message.routing_key == wire.ALIVE:
                said: str | Spoken | Request = read_alive(message)
            elif message.routing_key == wire.REPORT:
                said = read_report(message)
            elif message.routing_key == wire.ENROL:
                said = read_request(delivery)
            else:
                return _Park(f"nothing is known that arrives as {quoted(message.routing_key)}")
        except Refused as error:
            return _Park(str(error))
        if isinstance(said, Request):
            return self._enrol(delivery, said)
        known = self._alive(said) if isinstance(said, str) else self._report(said)
        return _Done() if known else _Park("no node of this name has enrolled")

    def _alive(self, node: str) -> bool:
        with self._store.transaction():
            known = self._store.nodes.touch(node, self._clock())
            if known:
                self._has_spoken(node)
        return known

    def _report(self, spoken: Spoken) -> bool:
        now = self._clock()
        with self._store.transaction():
            node = self._store.nodes.get(spoken.node)
            if node is None:
                return False
            node, answer = after_report(node, spoken, now)
            self._store.nodes.save(node)
            if answer is Answer.AGAIN:
                self._store.declarations.send_again(node.name)
            elif answer is Answer.ANEW:
                sign_anew(self._store, self._key, node, now)
            self._has_spoken(node.name)
        return True

    def _has_spoken(self, node: str) -> None:
        if self._store.tokens.end_spent(node):
            _log.info("%s is there.", node)

    def _enrol(self, delivery: Delivery, request: Request) -> _Done | _Admitted:
        now, password = self._clock(), ""
        with self._store.transaction():
            decision = decide(request, self._store.tokens.live(), now)
            if isinstance(decision, Spend):
                password = self._admit(decision.token, request, now)
        if isinstance(decision, Deny):
            _log.info("A request to join was refused: %s.", decision.why)
            self._reply(delivery.message, wire.EnrolReply(accepted=False, refusal=decision.why))
            return _Done()
        if isinstance(decision, Repeat):
            return _Admitted(delivery, decision.token, decision.spending.password)
        _log.info("%s has enrolled.", decision.token.node)
        return _Admitted(delivery, decision.token, password)

    def _admit(self, token: IssuedToken, request: Request, now: float) -> str:
        """Spend a token on a request, in one transaction with all that follows from it; the new password."""
        password = base64.urlsafe_b64encode(self._random(_PASSWORD_BYTES)).decode("ascii").rstrip("=")
        wanted = request.wanted
        self._store.tokens.spend(token.id, Spending(wanted.public_key, password, request.digest), now)
        self._store.tokens.forget_others(token.node, token.id)
        profile = bounds.clean_profile(wanted.profile)
        self._store.nodes.enrol(token.node, wanted.public_key, wanted.overlay_key, profile, now)
        return password

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
        token = admitted.token
        self._accounts.make_node(token.node, admitted.password)
        # Whoever is still logged in under this name is not who has just joined.
        self._accounts.close_connections_of(wire.node_queue(token.node))
        self._reply(
            admitted.delivery.message,
            wire.EnrolReply(
                accepted=True,
                node=token.node,
                queue=wire.node_queue(token.node),
                password=admitted.password,
                fingerprint=self._fingerprint,
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
        reason = bounds.clean(why, bounds.LONGEST_REASON)
        parked = Message(
            body=b"" if message.routing_key == wire.ENROL else message.body[:_LARGEST_PARKED],
            routing_key=wire.PARKED_QUEUE,
            headers={"reason": reason, **_originals(message)},
            timestamp=int(self._clock()),
        )
        self._session.publish(parked, exchange="")
        self._parked()
        _log.warning(
            "A message for %s from %s was put aside in %s: %s",
            bounds.clean(message.routing_key, 100),
            _who(message),
            wire.PARKED_QUEUE,
            reason,
        )


def _who(message: Message) -> str:
    return bounds.clean(message.user_id, 100) if message.user_id else "an account that it does not name"


def _originals(message: Message) -> dict[str, str]:
    """What a message came with, as headers; re-publishing a foreign user_id as such would close the channel."""
    properties: dict[str, str | int | None] = {
        "routing_key": message.routing_key,
        "user_id": message.user_id,
        "type": message.type,
        "reply_to": message.reply_to,
        "correlation_id": message.correlation_id,
        "message_id": message.message_id,
        "timestamp": message.timestamp,
        "content_type": message.content_type,
        **{f"header.{name}": value for name, value in list(message.headers.items())[:_MOST_HEADERS]},
    }
    return {
        bounds.clean(f"original.{name}", _LONGEST_NAME): bounds.clean(str(value), _LONGEST_HEADER)
        for name, value in properties.items()
        if value is not None
    }
