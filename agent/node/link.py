"""The link to the mesh, from this side: log in, consume, report, say alive; and on any loss begin again, for ever.

One thread, this one, owns the connection; it only pumps. A session is one unit: whatever ends it, everything of it is
rebuilt. Its state is a union of few, each change of it said once. Nothing that runs on the machine depends on it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from agent.broker import (
    HEARTBEAT,
    PATIENCE,
    Delivery,
    Login,
    LoginRefused,
    QueueInUse,
    Session,
    connect,
    parse_address,
)
from agent.errors import AgentError, Unavailable
from agent.node import condition
from agent.node.identity import Membership
from agent.node.joining import Joining
from agent.node.ledger import open_ledger
from agent.node.life import Node
from agent.node.origins import carried_resources
from agent.node.speech import Speech
from agent.node.trust import Acceptance, Known, Refusal, judge
from agent.node.worker import ITSELF, Job, Rhythm, Worker
from agent.reconcile import Outcome
from agent.resources import Context
from agent.wire import DECLARATION_TYPE

log = logging.getLogger(__name__)

_PUMP = 1.0  # a signal is answered within this many seconds
_LONGEST_DELAY = 30.0
_QUIET = 2.0  # with --once: nothing more waits when nothing came for so long


@dataclass(frozen=True, slots=True)
class Manner:
    """How a node lives with its mesh; all in seconds. `rhythm`: when its lists are looked at again.

    `once`: end when nothing more waits, or when so long has passed without a link. `patience` bounds every answer of
    the broker. A queue that somebody else consumes is tried for every `in_use_retry`; after `in_use_said_after` that
    is said.
    """

    alive_interval: float = 60.0
    once: float | None = None
    heartbeat: int = HEARTBEAT
    patience: float = PATIENCE
    in_use_retry: float = 5.0
    in_use_said_after: float = 40.0
    rhythm: Rhythm = field(default_factory=Rhythm)


class Link:
    """One node's link. `random` gives a number from 0 to 1, `tell` takes a line for a person."""

    def __init__(self, node: Node, manner: Manner, tell: Callable[[str], None], random: Callable[[], float]) -> None:
        self._node = node
        self._manner = manner
        self._tell = tell
        self._random = random
        self._ledger = open_ledger(node.state, time.time, write=True)  # the worker has its own
        self._joining = Joining(node, self._ledger, tell)
        self._speech = Speech(node, self._ledger)
        self._outcomes: queue.SimpleQueue[tuple[Job, Outcome]] = queue.SimpleQueue()
        self._worker: Worker | None = None
        self._session: Session | None = None
        self._is_up = False
        self._last_word = ""
        self._said: set[str] = set()
        self._own_failure: dict[str, str] = {}
        self._last_activity = 0.0

    def run(self, worker: Worker, stop: threading.Event) -> bool:
        """Hold the link until `stop`; with `once`, until nothing more waits. Whether it was up at its end."""
        self._worker = worker
        begun = time.monotonic()
        delays = self._delays()
        while not stop.is_set():
            try:
                self._hold(stop)
                return True
            except Exception as error:
                if self._is_up:
                    delays = self._delays()
                self._down(error)
            if self._manner.once is not None and time.monotonic() - begun > self._manner.once:
                return False
            stop.wait(next(delays))
        return False

    def done(self, job: Job, outcome: Outcome) -> None:
        """The worker has finished a list; its report goes out as soon as the link can. Called on any thread."""
        if job.accepted and not job.again:
            self._tell(_sentence(job, outcome))
        self._outcomes.put((job, outcome))
        session = self._session
        if session:
            with suppress(Unavailable):  # the session is over, and the next one begins with a report
                session.call(self._report_outcomes)

    def _hold(self, stop: threading.Event) -> None:
        membership = self._joining.membership()
        try:
            session = self._log_in(membership)
        except LoginRefused:
            # The answer may have been fixed without ever having been made true, or by another broker's life.
            again = self._joining.again()
            if again is None:
                raise
            membership = again
            session = self._log_in(membership)
        try:
            self._session = session
            next_alive = self._say_alive(session)
            next_alive = self._consume(session, membership, stop, next_alive)
            self._up(membership)
            # A list that is still being applied is reported when it has been; before any, the ports are what counts.
            if self._idle() or self._ledger.accepted() is None:
                self._speech.report(session, self._own_failure)
            self._report_outcomes()
            self._last_activity = time.monotonic()
            while not stop.is_set() and not self._nothing_waits():
                session.pump(max(0.0, min(_PUMP, next_alive - time.monotonic())))
                if time.monotonic() >= next_alive:
                    next_alive = self._say_alive(session)
        finally:
            self._session = None
            session.close()

    def _log_in(self, membership: Membership) -> Session:
        pins = self._joining.pins(membership)
        login = Login(parse_address(membership.broker), membership.account, membership.password, pins)
        return connect(login, heartbeat=self._manner.heartbeat, patience=self._manner.patience)

    def _consume(self, session: Session, membership: Membership, stop: threading.Event, next_alive: float) -> float:
        """Take the queue for this machine alone; the time of the next alive. Goes on trying while another has it."""
        begun, said = time.monotonic(), False
        while True:
            try:
                session.consume(membership.queue, self._receive, exclusive=True, prefetch=1)
                return next_alive
            except QueueInUse:
                if not said and time.monotonic() - begun >= self._manner.in_use_said_after:
                    said = True
                    self._tell(
                        f"another machine holds this identity ({membership.account}): it consumes the same queue; "
                        "end the agent there, or join again with a token of its own"
                    )
            again = time.monotonic() + self._manner.in_use_retry
            while time.monotonic() < again:
                if stop.is_set():
                    raise Unavailable("the agent is ending")
                session.pump(min(_PUMP, max(0.0, again - time.monotonic())))
                if time.monotonic() >= next_alive:
                    next_alive = self._say_alive(session)

    # What comes.

    def _receive(self, delivery: Delivery) -> None:
        session = self._session
        membership = self._node.identity.membership()
        if session is None or membership is None:
            return  # unacknowledged, so it comes again
        self._last_activity = time.monotonic()
        message = delivery.message
        if message.type not in (None, "", DECLARATION_TYPE):
            verdict: Acceptance | Refusal = Refusal(f"this agent knows no message of type {message.type}", None)
        else:
            verdict = judge(message.body, self._known(membership), datetime.now(timezone.utc))
        if isinstance(verdict, Refusal):
            self._tell(f"refused a declaration: {verdict.why}")
            self._speech.refuse(session, verdict)
            session.ack(delivery.tag)
            return
        self._accept(verdict, membership)
        session.ack(delivery.tag)
        if self._worker:
            self._worker.submit(Job(verdict.declaration.serial, verdict.resources))

    def _known(self, membership: Membership) -> Known:
        accepted = self._ledger.accepted()
        return Known(
            node=self._node.myself.name,
            signers=self._joining.signers(membership),
            serial=accepted.serial if accepted else 0,
            accepted=accepted.data if accepted else b"",
            assigned=self._ledger.assigned_or_recovered(),
            carried=carried_resources(self._node.substrate, self._ledger),
            context=Context(self._node.state),
            impossible=self._node.impossible,
        )

    def _accept(self, verdict: Acceptance, membership: Membership) -> None:
        declaration = verdict.declaration
        self._ledger.accept(
            declaration.serial,
            verdict.data,
            verdict.signature,
            verdict.signer,
            declaration.recovery,
            declaration.trust,
        )
        if declaration.trust:  # in the identity as well, where a lost ledger doesn't take it
            trusted = self._ledger.trust()
            kept = replace(
                membership,
                signers=trusted.signers or membership.signers,
                fingerprints=trusted.fingerprints or membership.fingerprints,
            )
            if kept != membership:
                self._node.identity.join(kept)
        self._tell(f"accepted declaration {declaration.serial}: {len(verdict.resources)} resources")

    # What is said.

    def _say_alive(self, session: Session) -> float:
        interval = self._manner.alive_interval
        self._speech.say_alive(session, interval)
        self._node.identity.drop_token()  # the node's own account has spoken
        return time.monotonic() + interval

    def _report_outcomes(self) -> None:
        """Report what the worker finished: once for all of it, and not while a newer list is still to be applied."""
        finished = None
        while True:
            try:
                finished, outcome = self._outcomes.get_nowait()
            except queue.Empty:
                break
            self._own_failure = {id: why for id, why in outcome.failed.items() if id == ITSELF}
        self._last_activity = time.monotonic()
        accepted = self._ledger.accepted()
        # A report states the accepted serial, so it waits until that list is applied.
        superseded = finished and finished.accepted and accepted and finished.serial < accepted.serial
        if finished and self._session and not superseded:
            self._speech.report(self._session, self._own_failure)

    # How it stands.

    def _idle(self) -> bool:
        return self._worker is None or self._worker.idle

    def _up(self, membership: Membership) -> None:
        self._is_up = True
        self._last_word = ""
        self._said.clear()
        self._tell(f"connected to {membership.broker} as {membership.account}; waiting for declarations")
        self._note(condition.Link(f"up, to {membership.broker}", time.time()))

    def _down(self, error: Exception) -> None:
        """Say once what is wrong; the same reason again is no news until the link was up."""
        self._is_up = False
        if isinstance(error, AgentError):
            why = str(error)
        else:
            log.error("an error of the agent's own ended the session", exc_info=error)
            why = f"an error of the agent's own ({type(error).__name__}: {error})"
        if why != self._last_word:
            self._last_word = why
            self._note(condition.Link("down", time.time(), why))
        if why not in self._said:
            self._said.add(why)
            self._tell(f"no link to the mesh: {why}; what runs here goes on, and the link is tried again")

    def _note(self, link: condition.Link) -> None:
        """Leave word for `agent status`; that this can't be written now is no reason to have no link."""
        try:
            condition.write_link(self._node.state, link)
        except AgentError as error:
            log.warning("how the link stands can't be written down: %s", error)

    def _nothing_waits(self) -> bool:
        if self._manner.once is None or not self._idle():
            return False
        return self._outcomes.empty() and time.monotonic() - self._last_activity > _QUIET

    def _delays(self) -> Iterator[float]:
        """Seconds between tries: doubling from half a second, jittered by half."""
        delay = 0.5
        while True:
            yield delay * (0.75 + 0.5 * self._random())
            delay = min(_LONGEST_DELAY, delay * 2)


def _sentence(job: Job, outcome: Outcome) -> str:
    if outcome.failed:
        return f"declaration {job.serial}: {len(outcome.failed)} failed; tried again in a while"
    return f"declaration {job.serial} is true here ({outcome.changes} changes)"
