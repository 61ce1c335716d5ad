"""One `up`, from taking the folder to its end: what is said on the way, who applies, how a signal is answered."""

from __future__ import annotations

import logging.handlers
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from agent.errors import Refused
from agent.node import folder, installing, own_copy, succession
from agent.node.life import Node, begin
from agent.node.link import Link, Manner
from agent.node.plans import Asked, consider, plans_for
from agent.node.preview import Preview, preview
from agent.node.program import changes, of_this_process
from agent.node.worker import NOTHING_ACCEPTED, Job, Worker
from agent.reconcile import Outcome, Step
from agent.resources import Origin, Service

_ENDING = 10.0
_LAST_CALL = _ENDING + 5.0
_LOG_BYTES = 1024 * 1024

FINE, FAILED = 0, 2


@dataclass(frozen=True, slots=True)
class Voice:
    """Where an `up` says what it does. All may be called on another thread than the one that began it.

    `tell` takes lines for a person, `show` each step of a raise or an apply, `preview` what another file would change.
    """

    tell: Callable[[str], None]
    show: Callable[[Step], None]
    preview: Callable[[Preview], None]


def up(asked: Asked, manner: Manner, voice: Voice, understood: Callable[[Path], None]) -> int:
    """Raise, join, apply, hold; 0 when all went well, 2 when something failed.

    What is wrong before the first touch is raised, and an agent that runs here is then not asked to go. `understood`
    raises Refused when another room's part of the state folder is a newer program's.
    """
    program, tell = of_this_process(asked.bundle), voice.tell
    before = succession.predecessor(asked.state, asked.running_file, program, once=manner.once is not None)
    plans = plans_for(asked)
    another = (before.program if before else None) or plans.replaces
    if another:
        understood(asked.state)
    consider(asked, plans, tell, newcomer=another is not None)
    if another:
        tell(f"this file takes the place of another: {changes(another, plans.program)}")
        voice.preview(preview(asked))
    folder.prepare(asked.state)
    unit = installing.unit_running(asked.state, before.process) if before else ""
    with ExitStack() as stack:
        with own_copy.staged(asked.running_file, asked.state, asked.bundle, needed=not plans.is_settled) as settle:
            stack.enter_context(succession.succeed(asked.state, program, before))
            if before:
                tell(f"the agent that ran here (process {before.process.pid}) has ended; all that it raised runs on")
            settle()
        stop = stack.enter_context(_stopping())
        _log_to(asked.state / "log" / "agent.log")
        node = begin(asked, plans, own_copy.carried(asked.state, asked.bundle))
        job = _accepted_job(node, tell)
        outcome = node.raise_substrate(job.resources, voice.show, stop.is_set, prune=asked.prune)
        _tell_ports(node, tell)
        if not unit:
            _tell_who_keeps(node, tell)
            return _live(node, manner, voice, stop, job, outcome)
        node.ledger.close()
    installing.hand_over(asked.state, unit, tell)
    return FAILED if outcome.failed else FINE


def _live(node: Node, manner: Manner, voice: Voice, stop: threading.Event, job: Job, raised: Outcome) -> int:
    """Everything after the raise: apply again what was accepted (`job`), and hold the link."""
    if stop.is_set():
        return FINE
    tell, failed = voice.tell, bool(raised.failed)
    if failed:
        tell(
            f"{len(raised.failed)} of the carried resources failed; "
            f"they are tried again every {manner.rhythm.retry:.0f} s"
        )
    outcomes: list[Outcome] = []
    link = Link(node, manner, tell, random.random)

    def apply(job: Job) -> Outcome:
        mended: list[Step] = []
        note = mended.append if job.again else voice.show
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
        from agent.kinds.service import rotate_all  # no start waits for it to be loaded

        rotate_all(node.state)
        return node.has_ended()

    worker = Worker(apply, done, rhythm=manner.rhythm, ended=look_after)
    try:
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


def _tell_who_keeps(node: Node, tell: Callable[[str], None]) -> None:
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
