"""How fast the control plane deals with 10,000 alives that wait, against a bare consumer on the very same queue."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pika

from agent.control.store import open_store
from tests.broker.nodes import Founder
from tests.broker.plane import Node, Peer
from tests.broker.rabbit import CONTROL_PASSWORD, Rabbit, wait_until

COUNT = 10_000
PREFETCH = 500


def drained() -> tuple[float, float]:
    """Seconds for all of them: the control plane's, and a bare consumer's that acknowledges each."""
    rabbit = Rabbit()
    ground = Path(tempfile.mkdtemp(prefix="mesh-agent-bench-", dir="/var/lib"))
    try:
        rabbit.start()
        founder = Founder(rabbit, ground)
        founder.start()
        try:
            with founder.join("a") as node:
                ours = _ours(founder, node)
                founder.stop()
                _say(node, 1 + COUNT)
                return ours, _bare(rabbit)
        finally:
            founder.kill()
    finally:
        rabbit.remove()
        shutil.rmtree(ground)


def _say(node: Node, first: int) -> None:
    for counter in range(first, first + COUNT):
        node.state("alive", counter)
    # The broker has taken everything before it answers this.
    node.has_nothing()


def _ours(founder: Founder, node: Node) -> float:
    assert founder.process is not None
    with closing(open_store(founder.state)) as store:
        # Nobody reads while they are said, without the cost of a start being counted.
        os.kill(founder.process.pid, signal.SIGSTOP)
        _say(node, 1)
        begun = time.perf_counter()
        os.kill(founder.process.pid, signal.SIGCONT)

        def last() -> int:
            speaker = store.nodes.speaker("a")
            return speaker.counter if speaker else 0

        wait_until(lambda: last() == COUNT, 120, lambda: str(last()))
        return time.perf_counter() - begun


def _bare(rabbit: Rabbit) -> float:
    seen = 0

    def arrive(channel: pika.channel.Channel, method: pika.spec.Basic.Deliver, *_: object) -> None:
        nonlocal seen
        channel.basic_ack(method.delivery_tag)
        seen += 1

    with Peer(rabbit, "control", CONTROL_PASSWORD) as peer:
        peer.channel.basic_qos(prefetch_count=PREFETCH)
        begun = time.perf_counter()
        peer.channel.basic_consume("control", arrive)
        while seen < COUNT:
            peer.connection.process_data_events(0.1)
        return time.perf_counter() - begun
