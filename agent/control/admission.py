"""Who asks to join: decided and committed, then given an account, then answered.

- What can't be done now (the broker's management is away) is tried again in the same session, and keeps nobody else
  waiting.
- An answer goes out after the account works, on a connection of its own; it goes nowhere if nobody waits for it any
  more.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from agent import wire
from agent.broker import Blocked, Delivery, Lost, Message, Session
from agent.control import bounds
from agent.control.accounts import Accounts
from agent.control.changing import settle
from agent.control.declaring import find_node, tell
from agent.control.enrolment import REFUSAL, Deny, IssuedToken, Repeat, Request, Spend, Spending, decide
from agent.control.signing import Keyring
from agent.control.store import Store
from agent.errors import AgentError, Refused, Unavailable

_log = logging.getLogger(__name__)

_PASSWORD_BYTES = 32
_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A request was accepted, which is committed; its account is to be made, then it is answered."""

    delivery: Delivery
    token: IssuedToken
    spending: Spending


class Admission:
    """Lets machines in, in one session. The arguments are those of `agent.control.intake.Intake`."""

    def __init__(
        self,
        session: Session,
        store: Store,
        accounts: Accounts,
        *,
        keys: Callable[[], Keyring],
        fingerprint: str,
        open_session: Callable[[], Session],
        clock: Callable[[], float],
        random: Callable[[int], bytes],
    ) -> None:
        self._session = session
        self._store = store
        self._accounts = accounts
        self._keys = keys
        self._fingerprint = fingerprint
        self._open_session = open_session
        self._clock = clock
        self._random = random
        self._admitted: list[_Admitted] = []
        self._hindrance: AgentError | None = None
        self._retry_at = 0.0

    @property
    def unanswered(self) -> frozenset[str]:
        """The nodes that were let in and have no answer yet."""
        return frozenset(one.token.node for one in self._admitted)

    def take(self, delivery: Delivery, request: Request) -> None:
        """Decide about a request, which `answer` answers if it was accepted; a refusal is answered and acknowledged."""
        now = self._clock()
        with self._store.transaction():
            decision = decide(request, self._store.tokens.live(), now)
            spending = self._admit(decision.token, request, now) if isinstance(decision, Spend) else None
        if isinstance(decision, Deny):
            _log.info("A request to join was refused: %s.", decision.why)
            self._reply(delivery.message, wire.EnrolReply(accepted=False, refusal=decision.why))
            self._session.ack(delivery.tag)
            return
        if isinstance(decision, Repeat):
            self._admitted.append(_Admitted(delivery, decision.token, decision.spending))
            return
        assert spending is not None
        _log.info("%s has enrolled%s.", decision.token.node, ", in another's place" if spending.replaces else "")
        self._admitted.append(_Admitted(delivery, decision.token, spending))

    def answer(self) -> None:
        """Answer whoever was let in. An account that can't be made now keeps nobody else waiting.

        Unavailable while one can't be; Lost when the session is over.
        """
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
                    # Behind the others. Where the management hangs, each of them would hold up all else as long again.
                    self._admitted.remove(admitted)
                    self._admitted.append(admitted)
                    if isinstance(error, Unavailable):
                        break
                else:
                    self._admitted.remove(admitted)
        if self._hindrance is not None:
            raise self._hindrance

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
        # Its address may be another one, which others refer to; and its key, for which secrets are sealed.
        settle(self._store, self._keys(), token.node, now)
        self._tell(token, now)
        return spending

    def _tell(self, token: IssuedToken, now: float) -> None:
        """Have whoever joins with a token that is older than our newest key or pin hear of it: it trusts what the token
        says, and nothing else that it was ever told.
        """
        keys = self._keys()
        if token.signer == keys.newest.public and token.made >= self._store.settings.pinned:
            return
        self._store.nodes.forget_trust(token.node)
        try:
            tell(self._store, keys, find_node(self._store, token.node), now)
        except Refused as error:
            _log.warning("%s can't be told which keys and certificates count: %s", token.node, error)

    def _answer(self, admitted: _Admitted) -> None:
        token, account = admitted.token, wire.node_queue(admitted.token.node)
        # The store is held, so that the account isn't made while the token or its node is being removed.
        with self._store.transaction():
            is_kept = self._store.tokens.is_kept(token.id)
            if is_kept and admitted.spending.replaces:
                # At once, which closing connections isn't; what waits was signed for a machine that is gone.
                self._accounts.delete_account(account)
                self._accounts.purge_queue(account)
            if is_kept:
                self._accounts.make_node(token.node, admitted.spending.password)
        if not is_kept:
            # It was dropped after it had been spent: by another token, or by a person.
            self._reply(admitted.delivery.message, wire.EnrolReply(accepted=False, refusal=REFUSAL))
            self._session.ack(admitted.delivery.tag)
            return
        # Whoever is still logged in under this name is not who has just joined.
        self._accounts.close_connections_of(account)
        self._reply(
            admitted.delivery.message,
            wire.EnrolReply(
                accepted=True,
                node=token.node,
                queue=wire.node_queue(token.node),
                password=admitted.spending.password,
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
            "A request to join from %s had a reply address that the broker broke over, and got no answer",
            bounds.account(message.user_id),
        )
