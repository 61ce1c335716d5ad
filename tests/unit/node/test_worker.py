from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from agent.errors import Unavailable
from agent.node.worker import ITSELF, Job, Rhythm, Worker
from agent.reconcile import Outcome

DEADLINE = 30.0
NEVER = 3600.0
BAD = Outcome(failed={"file:/x": "because"})


class Bench:
    """A worker whose applying is told what to do: each job waits for its outcome (or an error) from the test."""

    def __init__(
        self, retry_after: float = NEVER, drift: float = NEVER, watch: float = 1.0, ended: Callable[[], bool] = bool
    ) -> None:
        self.begun: SimpleQueue[int] = SimpleQueue()
        self.orders: SimpleQueue[Outcome | Exception | Callable[[], Outcome]] = SimpleQueue()
        self.told: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        self.worker = Worker(
            self._apply,
            lambda job, outcome: self.told.put((job.serial, outcome)),
            rhythm=Rhythm(retry=retry_after, drift=drift, watch=watch, longest=0.01),
            ended=ended,
        )
        self.worker.start()

    def _apply(self, job: Job) -> Outcome:
        self.begun.put(job.serial)
        order = self.orders.get(timeout=DEADLINE)
        if isinstance(order, Exception):
            raise order
        return order if isinstance(order, Outcome) else order()

    def submit(self, serial: int) -> None:
        self.worker.submit(Job(serial, ()))

    def next_begun(self) -> int:
        return self.begun.get(timeout=DEADLINE)

    def next_told(self) -> tuple[int, Outcome]:
        return self.told.get(timeout=DEADLINE)

    def end_in_the_middle(self) -> None:
        """End it while it looks again and again: one more look may have begun, and gets its outcome."""
        self.orders.put(Outcome())
        assert self.worker.stop(DEADLINE)

    def end(self) -> None:
        assert self.worker.stop(DEADLINE)
        assert self.begun.empty()
        assert self.told.empty()


def test_the_newest_wins() -> None:
    bench = Bench()
    assert bench.worker.idle
    bench.submit(1)
    assert bench.next_begun() == 1
    for serial in (2, 3, 4):
        bench.submit(serial)
    assert not bench.worker.idle
    for _ in range(2):
        bench.orders.put(Outcome(changes=1))
    assert bench.next_begun() == 4
    assert [bench.next_told(), bench.next_told()] == [(1, Outcome(changes=1)), (4, Outcome(changes=1))]
    bench.end()


def test_what_failed_is_applied_again_until_it_succeeds() -> None:
    bench = Bench(retry_after=0.001)
    bench.submit(1)
    for outcome in (BAD, BAD, Outcome()):
        bench.orders.put(outcome)
        assert bench.next_begun() == 1
    # The same failure again is no news; that it is over is.
    assert [bench.next_told(), bench.next_told()] == [(1, BAD), (1, Outcome())]
    bench.submit(2)
    assert bench.next_begun() == 2
    bench.orders.put(Outcome())
    assert bench.next_told() == (2, Outcome())
    bench.end()


def test_a_newer_list_ends_the_retries_of_the_older() -> None:
    bench = Bench(retry_after=0.001)
    bench.submit(1)
    assert bench.next_begun() == 1
    bench.submit(2)
    bench.orders.put(BAD)
    bench.orders.put(Outcome())
    assert [bench.next_begun(), bench.next_told()[0], bench.next_told()[0]] == [2, 1, 2]
    bench.submit(3)
    assert bench.next_begun() == 3
    bench.orders.put(Outcome())
    assert bench.next_told() == (3, Outcome())
    bench.end()


def test_between_retries_it_waits_and_is_idle() -> None:
    bench = Bench(retry_after=NEVER)
    bench.submit(1)
    bench.orders.put(BAD)
    assert (bench.next_begun(), bench.next_told()) == (1, (1, BAD))
    bench.submit(2)  # would come after a second try of the first, had there been one
    assert bench.next_begun() == 2
    bench.orders.put(Outcome())
    assert bench.next_told() == (2, Outcome())
    wait_until(lambda: bench.worker.idle)
    bench.end()


def test_it_is_idle_only_when_the_outcome_was_told() -> None:
    told, go_on = threading.Event(), threading.Event()

    def done(job: Job, outcome: Outcome) -> None:
        told.set()
        go_on.wait(DEADLINE)

    worker = Worker(lambda job: Outcome(), done, rhythm=Rhythm())
    worker.submit(Job(1, ()))
    assert not worker.idle
    worker.start()
    assert told.wait(DEADLINE)
    assert not worker.idle
    go_on.set()
    wait_until(lambda: worker.idle)
    assert worker.stop(DEADLINE)


def test_what_is_as_it_should_be_is_looked_at_again_in_silence() -> None:
    bench = Bench(drift=0.001)
    bench.submit(1)
    for outcome in (Outcome(), Outcome(), Outcome(changes=2)):
        bench.orders.put(outcome)
        assert bench.next_begun() == 1
    assert [bench.next_told(), bench.next_told()] == [(1, Outcome()), (1, Outcome(changes=2))]
    bench.end_in_the_middle()


def test_what_has_ended_does_not_wait_for_its_turn() -> None:
    ended = threading.Event()
    bench = Bench(watch=0.001, ended=ended.is_set)
    bench.submit(1)
    bench.orders.put(Outcome())
    assert (bench.next_begun(), bench.next_told()) == (1, (1, Outcome()))
    ended.set()
    for _ in range(3):  # and goes on when it ends again, however often
        bench.orders.put(Outcome(changes=1))
        assert (bench.next_begun(), bench.next_told()) == (1, (1, Outcome(changes=1)))
    bench.end_in_the_middle()


def test_a_ledger_that_cannot_be_written_is_a_failure_and_tried_again() -> None:
    bench = Bench(retry_after=0.001)
    bench.submit(1)
    bench.orders.put(Unavailable("the disk is full; make room"))
    assert (bench.next_begun(), bench.next_told()) == (1, (1, Outcome(failed={ITSELF: "the disk is full; make room"})))
    bench.orders.put(Outcome())
    assert (bench.next_begun(), bench.next_told()) == (1, (1, Outcome()))
    bench.end()


def test_an_error_of_its_own_does_not_end_the_thread() -> None:
    bench = Bench()
    bench.submit(1)
    bench.orders.put(ZeroDivisionError("x"))
    assert bench.next_begun() == 1
    serial, outcome = bench.next_told()
    assert serial == 1
    assert "an error of the agent's own (ZeroDivisionError: x)" in outcome.failed[ITSELF]
    bench.submit(2)
    bench.orders.put(Outcome())
    assert (bench.next_begun(), bench.next_told()) == (2, (2, Outcome()))
    bench.end()


def test_an_error_in_telling_does_not_end_the_thread() -> None:
    told: SimpleQueue[int] = SimpleQueue()

    def done(job: Job, outcome: Outcome) -> None:
        told.put(job.serial)
        raise ZeroDivisionError

    worker = Worker(lambda job: Outcome(), done, rhythm=Rhythm())
    worker.start()
    for serial in (1, 2):
        worker.submit(Job(serial, ()))
        assert told.get(timeout=DEADLINE) == serial
    wait_until(lambda: worker.idle)
    assert worker.stop(DEADLINE)


def test_stopping_ends_it_at_once_when_it_waits() -> None:
    for prepare in (lambda bench: None, fail_once):
        bench = Bench(retry_after=NEVER)
        prepare(bench)
        bench.end()


def fail_once(bench: Bench) -> None:
    bench.submit(1)
    bench.orders.put(BAD)
    assert (bench.next_begun(), bench.next_told()) == (1, (1, BAD))


def test_stopping_in_the_middle_ends_after_the_resource_at_hand() -> None:
    bench = Bench(retry_after=0.001)
    bench.submit(1)
    assert bench.next_begun() == 1
    bench.submit(2)
    assert not bench.worker.stopping
    assert not bench.worker.stop(0.001)
    assert bench.worker.stopping
    bench.orders.put(Outcome(changes=1, failed={"x": "y"}, interrupted=True))
    bench.end()  # neither told, nor tried again, nor the next one begun


def test_one_that_never_began_can_be_stopped() -> None:
    assert Worker(lambda job: Outcome(), lambda job, outcome: None, rhythm=Rhythm()).stop(DEADLINE)


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(int(DEADLINE / 0.01)):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("the deadline has passed")
