"""The one thread that applies: always the newest accepted list, one at a time, and in its rhythm again."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agent.errors import AgentError
from agent.reconcile import Outcome
from agent.resources import Resource

log = logging.getLogger(__name__)

ITSELF = "agent"
"""Stands in an outcome for a resource's id when what failed is none: the ledger, or the agent itself."""


@dataclass(frozen=True, slots=True)
class Job:
    """A list to be made true. One that was not `accepted` says nothing of what is no longer wanted.

    `again`: it was true, or tried, before; what is carried is looked at too.
    """

    serial: int
    resources: tuple[Resource, ...]
    accepted: bool = True
    again: bool = False


NOTHING_ACCEPTED = Job(0, (), accepted=False)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """When a list is looked at again, in seconds: after failures, after success (drift), and how often in between it is
    asked whether something ended. What ends again and again is waited for longer and longer, up to `longest`.
    """

    retry: float = 30.0
    drift: float = 300.0
    watch: float = 10.0
    longest: float = 300.0


class Worker:
    """Runs `apply` on a thread of its own and tells `done` (on that thread) what came of it.

    A list is applied when it is submitted and again in its rhythm, unless a newer one comes; `ended` is asked whether
    that shouldn't wait. Of a list that was looked at again `done` is told only when something was changed, or failed
    that did not before. Nothing that the three raise ends the thread.
    """

    def __init__(
        self,
        apply: Callable[[Job], Outcome],
        done: Callable[[Job, Outcome], None],
        *,
        rhythm: Rhythm,
        ended: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._apply = apply
        self._done = done
        self._rhythm = rhythm
        self._ended = ended
        self._clock = clock
        self._turn = threading.Condition()
        self._waiting: Job | None = None
        self._busy = False
        self._stopping = False
        self._failed: Mapping[str, str] = {}
        self._mended_at, self._patience = -math.inf, rhythm.watch
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self, standing: Job = NOTHING_ACCEPTED) -> None:
        """Begin, with a list that is as it should be and is looked at in its rhythm."""
        self._standing = standing
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Apply this next; one that is still waiting is replaced."""
        with self._turn:
            self._waiting = job
            self._turn.notify()

    @property
    def idle(self) -> bool:
        """Whether nothing new is being applied, waits to be or was and isn't told yet. Looking again doesn't count."""
        with self._turn:
            return not self._busy and self._waiting is None

    @property
    def stopping(self) -> bool:
        return self._stopping

    def stop(self, timeout: float) -> bool:
        """End after the resource at hand; whether it ended within `timeout` seconds."""
        with self._turn:
            self._stopping = True
            self._turn.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        standing = self._standing
        while job := self._next(replace(standing, again=True)):
            standing = job
            outcome = self._attempt(job)
            if not outcome.interrupted:
                if not job.again or outcome.changes or outcome.failed != self._failed:
                    self._tell(job, outcome)
                self._failed = outcome.failed
            with self._turn:
                self._busy = False

    def _next(self, again: Job) -> Job | None:
        """Wait for the next list, or until the last one is to be looked at again; None at the end."""
        due = self._clock() + (self._rhythm.retry if self._failed else self._rhythm.drift)
        while True:
            with self._turn:
                left = due - self._clock()
                self._turn.wait_for(lambda: self._waiting or self._stopping, max(0.0, min(left, self._rhythm.watch)))
                if self._stopping:
                    return None
                if self._waiting or self._clock() >= due:
                    job, self._waiting = self._waiting or again, None
                    self._busy = not job.again
                    return job
            if self._something_ended():
                due = self._clock()

    def _something_ended(self) -> bool:
        """Whether something ended that is to be started now, and not only after the patience with what ends often."""
        now = self._clock()
        if self._failed or now < self._mended_at + self._patience:
            return False
        try:
            if not self._ended():
                return False
        except Exception:
            log.exception("an error of the agent's own while looking after services")
            return False
        often = now < self._mended_at + 2 * self._rhythm.longest
        self._patience = min(self._rhythm.longest, 2 * self._patience) if often else self._rhythm.watch
        self._mended_at = now
        return True

    def _attempt(self, job: Job) -> Outcome:
        # A resource's failure is in the outcome; what is raised is the agent's own: a ledger on a full disk.
        try:
            return self._apply(job)
        except AgentError as error:
            log.error("applying serial %d stopped: %s", job.serial, error)
            return Outcome(failed={ITSELF: str(error)})
        except Exception as error:
            log.exception("an error of the agent's own while applying serial %d", job.serial)
            why = f"an error of the agent's own ({type(error).__name__}: {error}); the agent's log has the details"
            return Outcome(failed={ITSELF: why})

    def _tell(self, job: Job, outcome: Outcome) -> None:
        try:
            self._done(job, outcome)
        except Exception:
            log.exception("an error of the agent's own after applying serial %d", job.serial)
