"""The state folder on a machine: how it is laid out, and who is in it. One agent a folder at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Fatal, Refused, Unavailable
from agent.fields import quoted
from agent.host import directories, locks, machine
from agent.host.failures import in_words
from agent.host.processes import Process
from agent.node.program import Program, decode

DEFAULT = Path("/var/lib/mesh-agent")
_PRIVATE = ("identity", "blobs", "run", "log")
_LOCK = Path("run/agent.lock")
# What may lie in the folder before a ledger says whose it is; lost+found when it is a file system of its own.
_KNOWN = frozenset({"agent", "control", "lost+found", "runtime", "secrets", *_PRIVATE})
_LEDGER = "ledger.db"
# For a lock, the log and what a ledger's migration writes beside it.
_ROOM_TO_BEGIN = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Occupant:
    """Who holds the folder. `program` is None for one that does not say: it is not at `up`."""

    process: Process
    program: Program | None


class Occupied(Fatal):
    """The folder is another process's; `occupant` is None when that one can't be seen from here."""

    def __init__(self, state: Path, occupant: Occupant | None) -> None:
        super().__init__(str(running(state, occupant.process if occupant else None)))
        self.occupant = occupant


def prepare(state: Path) -> None:
    """Make the folder and those in it, with their modes; what is there already is set right.

    Refused, with nothing touched, when the folder is somebody else's.
    """
    uid, gid = os.geteuid(), os.getegid()
    if not state.is_absolute():
        raise Refused(f"the state folder {state} must be an absolute path")
    _refuse_foreign(state)
    for folder, mode in (
        (state, 0o711),
        (state / "secrets", 0o711),
        *((state / name, 0o700) for name in _PRIVATE),
    ):
        directories.make(folder, mode=mode, uid=uid, gid=gid)


def prepare_control(state: Path) -> None:
    """Make the control plane's folder, on a founder."""
    directories.make(state / "control", mode=0o700, uid=os.geteuid(), gid=os.getegid())


def require_room(state: Path) -> None:
    """Unavailable when the disk is so full that an agent could not begin here."""
    with in_words("Looking at", state):
        ledger = state / _LEDGER
        needed = _ROOM_TO_BEGIN + (ledger.stat().st_size if ledger.exists() else 0)
        free = machine.free_bytes(state)
    if free < needed:
        raise Unavailable(
            f"{state} would have {free >> 20} MiB left, and an agent needs {(needed >> 20) + 1} MiB to begin there; "
            "nothing was changed. Make room and try again"
        )


@contextmanager
def lock(state: Path, program: Program | None = None) -> Iterator[None]:
    """Hold the folder for this process; Occupied while another one has it. `program`: what this agent is."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.hold(state / _LOCK, program.encode() if program else ""))
        except locks.Held as error:
            raise Occupied(state, _occupant(error.holder, error.note)) from error
        yield


def occupant(state: Path) -> Occupant | None:
    """The process that holds the folder now."""
    found = locks.holder(state / _LOCK)
    return _occupant(found.process, found.note) if found else None


def holder(state: Path) -> int | None:
    """The pid of the agent that runs on this folder now."""
    found = occupant(state)
    return found.process.pid if found else None


def running(state: Path, by: Process | None) -> Fatal:
    """That an agent runs here already."""
    return Fatal(
        f"an agent is already running on {state} ({f'process {by.pid}' if by else 'another process'}), and there can "
        "be only one; see `agent status`, or end that one first"
    )


def _occupant(process: Process | None, note: str) -> Occupant | None:
    return Occupant(process, decode(note.encode())) if process else None


def _refuse_foreign(state: Path) -> None:
    with in_words("Looking at", state):
        names = {entry.name for entry in state.iterdir()} if state.is_dir() else set()
    if _LEDGER not in names and names - _KNOWN:
        raise Refused(
            f"{state} holds {quoted(min(names - _KNOWN))}, so it is not the agent's own folder; "
            "choose an empty or a new one with --state"
        )
