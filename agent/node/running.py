"""One `up`, from taking the folder to its end: what is said on the way, who applies, how a signal is answered."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from agent.errors import Refused
from agent.node import folder
from agent.node.life import Asked, Node, begin, consider
from agent.node.link import Link, Manner
from agent.node.worker import NOTHING_ACCEPTED, Job, Worker
from agent.reconcile import Outcome, Step
from agent.resources import Origin, Service

_ENDING = 10.0

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

    worker = Worker(apply, done, rhythm=manner.rhythm, ended=node.has_ended)
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
            "the agent itself ends with this shell, and `agent up` takes over again from any other"
        )


def _names(node: Node) -> Sequence[str]:
    return [resource.name for resource in node.substrate.resources if isinstance(resource.spec, Service)]


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; the second SIGINT ends at once."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
