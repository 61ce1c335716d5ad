"""What it costs to find a thousand files and directories unchanged, against merely reading them."""

from __future__ import annotations

import hashlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from agent.bundle import Bundle
from agent.errors import Refused
from agent.kinds import KINDS
from agent.kinds.kind import Machine
from agent.node import folder
from agent.node.identity import Identity, Role, Self
from agent.node.ledger import open_ledger
from agent.node.life import Node
from agent.node.substrate import Substrate
from agent.node.worker import Job
from agent.reconcile import Reconciler
from agent.resources import Context, Resource, parse_list

DIRECTORIES, FILES, ROUNDS = 200, 800, 20


def looked_at() -> tuple[float, float]:
    """Seconds of CPU, at the median: of a node's look that changes nothing, and of reading the same paths."""
    ground = Path(tempfile.mkdtemp(prefix="mesh-agent-bench-", dir="/var/lib"))
    try:
        state = ground / "state"
        folder.prepare(state)
        wanted = parse_list(_items(ground), Context(state))
        with closing(open_ledger(state, time.time, write=True)) as ledger:
            carried = Substrate(Bundle("none", "", {}, {}, ground), (), None)
            reconciler = Reconciler(ledger, Machine(state, bytes(32), carried.read_blob), KINDS, time.monotonic)
            node = Node(state, Self("a", Role.JOINER), Identity(state), ledger, reconciler, carried)
            _pass(node, wanted)
            ours = _cpu(lambda: _unchanged(node, wanted))
        return ours, _cpu(lambda: _read(wanted))
    finally:
        shutil.rmtree(ground)


def _items(ground: Path) -> list[dict[str, str]]:
    folders = [{"kind": "directory", "name": f"{ground}/{at}"} for at in range(DIRECTORIES)]
    files = [
        {"kind": "file", "name": f"{ground}/{at % DIRECTORIES}/file{at}", "content": f"{at:04} of {FILES}\n" * 20}
        for at in range(FILES)
    ]
    return folders + files


def _pass(node: Node, wanted: tuple[Resource, ...]) -> int:
    outcome = node.apply(Job(1, wanted, again=True), lambda step: None, lambda: False)
    if outcome.failed:
        raise Refused(f"the benchmark's own files could not be made: {outcome.failed}")
    return outcome.changes


def _unchanged(node: Node, wanted: tuple[Resource, ...]) -> None:
    assert _pass(node, wanted) == 0


def _read(wanted: tuple[Resource, ...]) -> None:
    for resource in wanted:
        path = Path(resource.name)
        path.lstat()
        if resource.kind == "file":
            hashlib.sha256(path.read_bytes()).hexdigest()


def _cpu(act: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        act()
        times.append(time.process_time() - begun)
    return statistics.median(times)
