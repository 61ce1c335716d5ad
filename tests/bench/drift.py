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
from agent.node.ledger import open_ledger
from agent.reconcile import Reconciler
from agent.resources import Context, Origin, Resource, parse_list

DIRECTORIES, FILES, ROUNDS = 200, 800, 20


def looked_at() -> tuple[float, float]:
    """Seconds of CPU, at the median: of the reconciler's pass that changes nothing, and of reading the same paths."""
    ground = Path(tempfile.mkdtemp(prefix="mesh-agent-bench-", dir="/var/lib"))
    try:
        state = ground / "state"
        folder.prepare(state)
        wanted = parse_list(_items(ground), Context(state))
        with closing(open_ledger(state, time.time, write=True)) as ledger:
            machine = Machine(state, bytes(32), Bundle("none", "", {}, {}, ground).read_blob)
            reconciler = Reconciler(ledger, machine, KINDS, time.monotonic)
            _pass(reconciler, wanted)
            ours = _cpu(lambda: _unchanged(reconciler, wanted))
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


def _pass(reconciler: Reconciler, wanted: tuple[Resource, ...]) -> int:
    outcome = reconciler.apply(wanted, Origin.ASSIGNED, prune=True, tell=lambda step: None)
    if outcome.failed:
        raise Refused(f"the benchmark's own files could not be made: {outcome.failed}")
    return outcome.changes


def _unchanged(reconciler: Reconciler, wanted: tuple[Resource, ...]) -> None:
    assert _pass(reconciler, wanted) == 0


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
