"""`control serve`: the one process that consumes the control queue, and sends what is due.

- One at a time (`turn`); only the one whose turn it is migrates the store.
- One thread does everything on the broker's session; another one only listens for pokes, and wakes it.
- A broker that is away is waited for, with a growing, jittered delay; what is wrong is said once, and once
  that it is over. Nothing ends it but a stop or a `Fatal`.
- A quorum queue that was made less than some two seconds before its broker lost its power is never served again
  (RabbitMQ 3.10). So `control` is made anew when it can't be read and never was for a while; what was lost with it
  was never acknowledged here, and is said again by its senders.
- A message that no client can decode ends every session that reads it, until the broker gives it up. What was read with
  it comes back with it; so that the broker doesn't give that up as well, it is then read one by one.
- It is ready once it consumes: it says so once, and writes `STATE/control/ready`.
- SIGTERM ends it within a second, even when something blocks: then as a crash would, which loses nothing.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

from agent import wire
from agent.broker import Login, Lost, NoSuchQueue, Session, connect
from agent.control import poke, renewal
from agent.control.accounts import Accounts
from agent.control.config import Settings, read_settings
from agent.control.founding import known_by, leave_token
from agent.control.intake import Intake, Own
from agent.control.management import connect_accounts
from agent.control.outbox import Outbox
from agent.control.signing import Keyring, ensure_key, serving_keyring
from agent.control.store import Signer, Store, open_store
from agent.control.tokens import tidy_tokens
from agent.control.trouble import Trouble
from agent.control.turn import take_turn
from agent.errors import AgentError, Fatal
from agent.host import directories, files

_log = logging.getLogger(__name__)

# Enough unacknowledged messages to keep the pipe full; few enough to come again after a crash.
_PREFETCH = 500
_TICK = 1.0
_COUNT_EVERY = 10.0
_AFTER_FAILURE = 5.0
# Five times what a new queue needs until it outlives a loss of power.
_SURE_AFTER = 10.0
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 5.0


def serve(
    state: Path,
    *,
    stop: threading.Event,
    alive_interval: float = 60.0,
    missed: int = 3,
    require_signatures: bool = False,
    accounts_for: Callable[[Settings], Accounts] = connect_accounts,
    open_session: Callable[[Login], Session] = connect,
    clock: Callable[[], float] = time.time,
    random: Callable[[int], bytes] = secrets.token_bytes,
) -> None:
    """Serve until `stop` is set; should it end otherwise, it sets `stop` itself.

    `alive_interval` in seconds; after `missed` of them without a word a node is out of touch. With `require_signatures`
    an unsigned statement does not count. Refused when this is no founder or the store is a newer program's; Fatal when
    it can't go on. While another process serves, it waits for its turn.
    """
    directories.make(state / "control", mode=0o700, uid=os.geteuid(), gid=os.getegid())
    with ExitStack() as stack:
        if not take_turn(state, stack, stop):
            return
        ready = state / "control" / "ready"
        files.remove(ready)
        settings = read_settings(state)
        with closing(open_store(state, migrate=True)) as store:
            store.settings.set_patience(alive_interval * missed)
            ensure_key(state, store, random, clock())
            renewal.finish(state, store, settings, clock())
            keys = _Keys(state, store)
            service = _Service(
                settings, store, accounts_for, keys, require_signatures, ready, open_session, clock, random
            )
            waker = threading.Thread(target=_wake_at_the_end, args=(stop, service), name="stop", daemon=True)
            waker.start()
            try:
                with poke.listen(state, service.wake):
                    service.run(stop)
            finally:
                stop.set()
                waker.join()


class _Keys:
    """The keys that count now; their files are read again when another process has made or retired one."""

    def __init__(self, state: Path, store: Store) -> None:
        self._state = state
        self._store = store
        self._known: tuple[tuple[Signer, ...], tuple[str, ...]] = ((), ())
        self._keyring: Keyring | None = None

    def current(self) -> Keyring:
        known = (self._store.signers.all(), self._store.settings.pins)
        if self._keyring is None or known != self._known:
            self._keyring = serving_keyring(self._state, self._store)
            self._known = known
        return self._keyring


class _Service:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        accounts_for: Callable[[Settings], Accounts],
        keys: _Keys,
        require_signatures: bool,
        ready: Path,
        open_session: Callable[[Login], Session],
        clock: Callable[[], float],
        random: Callable[[int], bytes],
    ) -> None:
        self._settings = known_by(settings, store)
        self._store = store
        self._accounts_for = accounts_for
        self._accounts = accounts_for(self._settings)
        self._keys = keys
        self._require_signatures = require_signatures
        self._ready = ready
        self._open_session = open_session
        self._clock = clock
        self._random = random
        self._session: Session | None = None
        self._is_ready = False
        self._chores_due = self._count_due = 0.0
        self._reads_since = 0.0
        self._barren = 0  # sessions in a row in which nothing was dealt with
        self._away = Trouble("The broker is back; the control plane serves again.")
        self._stuck = Trouble("The control plane has caught up.")
        self._untidy = Trouble("The control plane's housekeeping works again.")
        self._outbox = Outbox(store, clock)

    def run(self, stop: threading.Event) -> None:
        """Serve, session after session, until `stop` is set."""
        delay = _FIRST_DELAY
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._serve_session(stop)
            except Fatal:
                raise
            except AgentError as error:
                self._away.begin(_goes_on(error))
            except Exception:
                _log.exception("The control plane stumbled, and goes on")
            if time.monotonic() - began > _LONGEST_DELAY:
                delay = _FIRST_DELAY
            stop.wait(delay * (1 + self._random(1)[0] / 255) / 2)
            delay = min(delay * 2, _LONGEST_DELAY)

    def wake(self) -> None:
        """From any thread: have the session's one look at once for what is due."""
        session = self._session
        if session is not None:
            with suppress(Lost):
                session.call(_nothing)

    def _serve_session(self, stop: threading.Event) -> None:
        known = known_by(self._settings, self._store)
        if known != self._settings:
            self._settings, self._accounts = known, self._accounts_for(known)
        if not self._accounts.has_queue(wire.CONTROL_QUEUE):
            self._store.settings.set_served(False)
        self._accounts.ensure_topology()
        session = self._open_session(self._settings.login)
        try:
            intake = Intake(
                session,
                self._store,
                self._accounts,
                Own(
                    self._keys.current, self._settings.fingerprints[0], self._settings.account, self._require_signatures
                ),
                open_session=partial(self._open_session, self._settings.login),
                clock=self._clock,
                random=self._random,
                parked=self._count_soon,
            )
            self._read(session, intake)
            self._session = session
            self._reads_since = time.monotonic()
            self._chores_due = self._count_due = 0.0
            careful = self._barren > 1
            # With another pin that the broker may come to show, all that knows it begins anew.
            while not stop.is_set() and known_by(known, self._store) == known:
                before = intake.waiting
                self._step(session, intake)
                dealt = intake.waiting < before
                _take_in(session, intake)
                if not intake.waiting or (dealt and not careful):
                    self._barren = 0
                    if careful:
                        break  # what was there is read, and the next session reads as much as it can
        finally:
            self._session = None
            session.close()

    def _read(self, session: Session, intake: Intake) -> None:
        self._barren += 1
        prefetch = _PREFETCH if self._barren == 1 else 1
        try:
            session.consume(wire.CONTROL_QUEUE, intake.receive, exclusive=False, prefetch=prefetch)
        except (Lost, NoSuchQueue) as error:
            if not self._store.settings.served:
                _log.warning(
                    "The queue %s is new and can't be read (%s), so it is made anew.", wire.CONTROL_QUEUE, error
                )
                self._accounts.delete_queue(wire.CONTROL_QUEUE)
            raise

    def _step(self, session: Session, intake: Intake) -> None:
        """Do all that is to be done now. What can't be done now is done later, in the same session."""
        try:
            try:
                intake.work()
            finally:  # what keeps one message waiting keeps no declaration
                self._outbox.send_due(session, intake.unanswered)
        except (Lost, Fatal):
            raise
        except AgentError as error:
            self._stuck.begin(_goes_on(error))
        else:
            self._stuck.end()
        if time.monotonic() >= self._chores_due:
            self._do_chores(session)

    def _announce(self) -> None:
        self._away.end()
        if self._is_ready:
            return
        self._is_ready = True
        files.write(self._ready, b"", mode=0o600, uid=os.geteuid(), gid=os.getegid())
        _log.info("The control plane is ready.")

    def _do_chores(self, session: Session) -> None:
        """What nobody asks for: tokens that are over, the founder's own, the count of what was put aside."""
        now = self._clock()
        try:
            tidy_tokens(self._store, self._accounts, now)
            leave_token(
                self._settings,
                self._store,
                self._accounts,
                self._keys.current().newest.public,
                now=now,
                random=self._random,
            )
            if time.monotonic() - self._reads_since > _SURE_AFTER:
                self._store.settings.set_served(True)
            if time.monotonic() >= self._count_due:
                self._store.settings.set_parked(session.count(wire.PARKED_QUEUE))
                self._count_due = time.monotonic() + _COUNT_EVERY
        except (Lost, Fatal):
            raise
        except AgentError as error:
            self._untidy.begin(_goes_on(error))
            self._chores_due = time.monotonic() + _AFTER_FAILURE
            return
        self._untidy.end()
        self._chores_due = time.monotonic() + _TICK
        self._announce()

    def _count_soon(self) -> None:
        self._chores_due = self._count_due = 0.0


def _take_in(session: Session, intake: Intake) -> None:
    """Wait for something to arrive, and take in with it what comes right behind: it is committed together."""
    before = intake.waiting
    session.pump(_TICK)
    while before < intake.waiting < _PREFETCH:
        before = intake.waiting
        session.pump(0)


def _wake_at_the_end(stop: threading.Event, service: _Service) -> None:
    stop.wait()
    service.wake()


def stop_on_signals(stop: threading.Event) -> None:
    """Have SIGTERM and SIGINT set `stop`, and end the process a second later if something blocks until then."""

    def end(_signal: int, _frame: object) -> None:
        stop.set()
        # SIGALRM's default is to end the process.
        signal.alarm(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def _goes_on(error: AgentError) -> str:
    return f"{str(error).rstrip('.')}. The control plane goes on trying."


def _nothing() -> None:
    """Waking is all."""
