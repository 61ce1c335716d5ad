"""The one thread that applies: always the newest accepted list, one at a time, what failed again after a while."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from agent.errors import AgentError
from agent.reconcile import Outcome
from agent.resources import Resource

log = logging.getLogger(__name__)

ITSELF = "agent"
"""Stands in an outcome for a resource's id when what failed is none: the ledger, or the agent itself."""


@dataclass(frozen=True, slots=True)
class Job:
    """A list to be made true. One that was not `accepted` says nothing of what is no longer wanted."""

    serial: int
    resources: tuple[Resource, ...]
    accepted: bool = True


NOTHING_ACCEPTED = Job(0, (), accepted=False)


class Worker:
    """Runs `apply` on a thread of its own and tells `done` (on that thread) what came of it.

    `retry_after` is in seconds; a list with failures is applied again after it, unless a newer one comes. Nothing that
    `apply` or `done` raises ends the thread.
    """

    def __init__(
        self, apply: Callable[[Job], Outcome], done: Callable[[Job, Outcome], None], *, retry_after: float
    ) -> None:
        self._apply = apply
        self._done = done
        self._retry_after = retry_after
        self._turn = threading.Condition()
        self._waiting: Job | None = None
        self._busy = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Apply this next; one that is still waiting is replaced."""
        with self._turn:
            self._waiting = job
            self._turn.notify()

    @property
    def idle(self) -> bool:
        """Whether nothing is being applied, waits to be or was and isn't told yet. A retry to come doesn't count."""
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
        again: Job | None = None
        while job := self._next(again):
            outcome = self._attempt(job)
            if not outcome.interrupted:
                self._tell(job, outcome)
            again = job if outcome.failed else None
            with self._turn:
                self._busy = False

    def _next(self, again: Job | None) -> Job | None:
        """Wait for the next list, or until it is time for the one that failed; None at the end."""
        with self._turn:
            self._turn.wait_for(lambda: self._waiting or self._stopping, self._retry_after if again else None)
            if self._stopping:
                return None
            job, self._waiting = self._waiting or again, None
            self._busy = True
            return job

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
