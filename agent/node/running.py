"""One `up`, from taking the folder to its end: what is said on the way, who applies, how a signal is answered."""

from __future__ import annotations

import logging.handlers
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from agent.errors import Refused
from agent.kinds.service import rotate_all
from agent.node import folder, installing
from agent.node.life import Asked, Node, begin, consider
from agent.node.link import Link, Manner
from agent.node.worker import NOTHING_ACCEPTED, Job, Worker
from agent.reconcile import Outcome, Step
from agent.resources import Origin, Service

_ENDING = 10.0
_LAST_CALL = _ENDING + 5.0
_LOG_BYTES = 1024 * 1024

FINE, FAILED = 0, 2


def up(asked: Asked, manner: Manner, tell: Callable[[str], None], show: Callable[[Step], None]) -> int:
    """Raise, join, apply, hold; 0 when all went well, 2 when something failed.

    What is wrong before the first touch is raised.

    `tell` takes lines for a person, `show` each step of a raise or an apply; both may be called on another thread.
    """
    folder.refuse_running(asked.state)
    plans = consider(asked, tell)
    folder.prepare(asked.state)
    with folder.lock(asked.state), _stopping() as stop:
        _log_to(asked.state / "log" / "agent.log")
        node = begin(asked, plans)
        outcome = node.raise_substrate(show, stop.is_set, prune=asked.prune)
        _tell_ports(node, tell)
        if stop.is_set():
            return FINE
        if outcome.failed:
            tell(
                f"{len(outcome.failed)} of the carried resources failed; "
                f"they are tried again every {manner.rhythm.retry:.0f} s"
            )
        return _live(node, manner, stop, tell, show, failed=bool(outcome.failed))


def _live(
    node: Node,
    manner: Manner,
    stop: threading.Event,
    tell: Callable[[str], None],
    show: Callable[[Step], None],
    *,
    failed: bool,
) -> int:
    """Everything after the raise: apply again what was accepted, and hold the link."""
    outcomes: list[Outcome] = []
    link = Link(node, manner, tell, random.random)

    def apply(job: Job) -> Outcome:
        mended: list[Step] = []
        note = mended.append if job.again else show
        outcome = node.apply(job, lambda step: None if step.what == "kept" else note(step), lambda: worker.stopping)
        done = [f"{step.id} {step.what}: {step.detail}" for step in mended if step.what != "failed"]
        if done:
            tell(f"put right: {'; '.join(done)}")
        return outcome

    def done(job: Job, outcome: Outcome) -> None:
        outcomes[:] = [outcome]
        if job.again:
            for id, why in outcome.failed.items():
                tell(f"{id} failed: {why}")
        link.done(job, outcome)

    def look_after() -> bool:
        rotate_all(node.state)
        return node.has_ended()

    worker = Worker(apply, done, rhythm=manner.rhythm, ended=look_after)
    try:
        job = _accepted_job(node, tell)
        worker.start(job)
        if job.accepted or (failed and manner.once is None):
            worker.submit(job)
        if node.has_mesh:
            linked = link.run(worker, stop)
        else:
            tell("there is no mesh to join; what is raised is kept so")
            linked = manner.once is not None or stop.wait()
    finally:
        worker.stop(_ENDING)
    if outcomes:
        failed = bool(outcomes[0].failed)
    return FAILED if failed or not (linked or stop.is_set()) else FINE


def _accepted_job(node: Node, tell: Callable[[str], None]) -> Job:
    try:
        return node.accepted_job()
    except Refused as error:
        tell(f"what was accepted earlier is not applied again: {error}")
        return NOTHING_ACCEPTED


def _tell_ports(node: Node, tell: Callable[[str], None]) -> None:
    bindings = [binding for binding in node.ledger.bindings() if binding.origin is Origin.CARRIED]
    if bindings:
        tell("carried ports: " + ", ".join(f"{binding.port} ({binding.owner})" for binding in bindings))
    services = _names(node)
    if services:
        tell(
            f"{', '.join(services)} run on by themselves when this shell or this agent ends; "
            f"{installing.what_keeps_the_agent(node.state)}"
        )


def _names(node: Node) -> Sequence[str]:
    return [resource.name for resource in node.substrate.resources if isinstance(resource.spec, Service)]


def _log_to(path: Path) -> None:
    """Keep what nobody needs to read at a terminal; a traceback belongs here and not there."""
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=2)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    # What pika says of a lost connection is said by the link, in words.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; the second SIGINT ends at once.

    What is at hand then may take minutes (a service that is waited for). It gets its time and then no more: being ended
    in the middle is what the ledger is for, and the next `up` goes on from there.
    """
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()
        signal.setitimer(signal.ITIMER_REAL, _LAST_CALL)

    def on_alarm(number: int, frame: FrameType | None) -> None:
        os._exit(FINE)

    handlers = {signal.SIGTERM: on_signal, signal.SIGINT: on_signal, signal.SIGALRM: on_alarm}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
