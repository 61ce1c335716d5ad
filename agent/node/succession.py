"""One agent after another on a state folder: another file's `up` takes the place of the agent that runs there.

- Only a file that somebody brought does, never the agent's own copy: whatever restarts that one would otherwise end
  the newer agent that is just taking over.
- The running one is known by its lock, its pid and its start time; it finishes the resource at hand, and what it
  raised runs on. The lock is free for a moment then, and never two agents'.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agent.errors import Fatal
from agent.host import processes
from agent.host.processes import Process
from agent.node import folder, own_copy
from agent.node.folder import Occupant
from agent.node.program import Program

_PATIENCE = 60.0
_POLL = 0.02


def predecessor(state: Path, running_file: Path | None, program: Program, *, once: bool) -> Occupant | None:
    """The agent that runs here and whose place this file's is to take; None when none runs.

    Fatal when that one is to stay: it is of the same file, this is the agent's own copy, or (`once`) none would be
    left; and when it can't go, because it is suspended.
    """
    occupant = folder.occupant(state)
    if occupant is None:
        return None
    if own_copy.is_it(running_file, state) or not _gives_way(occupant, program):
        raise folder.running(state, occupant.process)
    if processes.is_suspended(occupant.process):
        raise Fatal(
            f"the agent that runs on {state} (process {occupant.process.pid}) is suspended, so it can't give way; let "
            f"it go on with `kill -CONT {occupant.process.pid}`, and run this again"
        )
    if once:
        raise Fatal(
            f"an agent of another file is running on {state} (process {occupant.process.pid}), and `up --once` would "
            "leave none there; run `agent up` to take its place"
        )
    return occupant


@contextmanager
def succeed(state: Path, program: Program, after: Occupant | None, *, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the folder for the block. An agent of another file is asked to end, once, if it was there before (`after`).

    Fatal when an agent has it that is to stay, or that does not end in time (`patience`, seconds). Unavailable, with
    nobody asked, when the disk has no room for another to begin.
    """
    if after:
        folder.require_room(state)
    asked: set[Process] = set()
    with ExitStack() as stack:
        try:
            _take(state, program, after, stack, asked, patience)
        except KeyboardInterrupt as error:
            if not asked:
                raise
            raise Fatal(
                f"this was interrupted after the agent that runs on {state} had been asked to end; it ends, and none "
                "takes its place until this is run again"
            ) from error
        yield


def _take(
    state: Path, program: Program, after: Occupant | None, stack: ExitStack, asked: set[Process], patience: float
) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            stack.enter_context(folder.lock(state, program))
            return
        except folder.Occupied as error:
            occupant = error.occupant
            if after is None or (occupant and not _gives_way(occupant, program)):
                raise
            if time.monotonic() >= deadline:
                raise _stubborn(state, after, patience) from error
            if occupant and occupant.process not in asked:
                asked.add(occupant.process)
                processes.send(occupant.process, signal.SIGTERM)
        time.sleep(_POLL)


def _gives_way(occupant: Occupant, program: Program) -> bool:
    # One that doesn't say what it is is at something else than `up`: at a reset.
    return occupant.program is not None and occupant.program.stamp != program.stamp


def _stubborn(state: Path, after: Occupant, patience: float) -> Fatal:
    return Fatal(
        f"the agent that runs on {state} (process {after.process.pid}) has not ended {patience:.0f} s after it was "
        "asked to, so nothing was changed; see what keeps it, and run this again once it has ended"
    )
