"""The state folder on a machine: how it is laid out, and who is in it. One agent a folder at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from agent.bundle import pack
from agent.errors import Fatal, Refused
from agent.fields import quoted
from agent.host import directories, files, locks
from agent.host.failures import in_words

DEFAULT = Path("/var/lib/mesh-agent")
_PRIVATE = ("identity", "blobs", "run", "log")
_LOCK = Path("run/agent.lock")
# What may lie in the folder before a ledger says whose it is; lost+found when it is a file system of its own.
_KNOWN = frozenset({"agent", "control", "lost+found", "runtime", "secrets", *_PRIVATE})
_LEDGER = "ledger.db"
_ENDS = 1024 * 1024


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


def refuse_running(state: Path) -> None:
    """Fatal when an agent runs on this folder; nothing is made or locked."""
    pid = holder(state)
    if pid is not None:
        raise _running(state, f"process {pid}")


def prepare_control(state: Path) -> None:
    """Make the control plane's folder, on a founder."""
    directories.make(state / "control", mode=0o700, uid=os.geteuid(), gid=os.getegid())


@contextmanager
def lock(state: Path) -> Iterator[None]:
    """Hold the folder for this process; Fatal, naming the other one, while an agent has it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.hold(state / _LOCK))
        except locks.Held as error:
            by = f"process {error.holder.pid}" if error.holder else "another process"
            raise _running(state, by) from error
        yield


def holder(state: Path) -> int | None:
    """The pid of the agent that runs on this folder now."""
    process = locks.holder(state / _LOCK)
    return process.pid if process else None


def settle(running: Path | None, state: Path, *, carrying: Path | None = None) -> Path:
    """Copy the running file to STATE/agent, which services and units point at, and give that path.

    It is written only when it is another file. `carrying`: a bundle's folder that is packed into the copy, so that a
    reboot raises the same.
    """
    place = state / "agent"
    if running is None:
        raise Refused("this runs from a source tree; build the one file with ./build.sh and run that")
    if carrying is not None:
        pack(running, carrying, place)
        return place
    with in_words("Copying", running), running.open("rb") as source:
        if not (place.exists() and _same(source, place)):
            chunks = iter(lambda: source.read(_ENDS), b"")
            files.write(place, chunks, mode=0o755, uid=os.geteuid(), gid=os.getegid())
    return place


def _running(state: Path, by: str) -> Fatal:
    return Fatal(
        f"an agent is already running on {state} ({by}), and there can be only one; "
        "see `agent status`, or end that one first"
    )


def _same(source: BinaryIO, place: Path) -> bool:
    """Whether both are the same archive, without reading what can be two gigabytes.

    A zip file ends with a list of all that it holds and the checksum of each; before the archive stands the start-up.
    """
    with place.open("rb") as there:
        size = os.fstat(source.fileno()).st_size
        if os.path.sameopenfile(source.fileno(), there.fileno()):
            return True
        if os.fstat(there.fileno()).st_size != size:
            return False
        return all(_read_at(source, at) == _read_at(there, at) for at in {0, max(0, size - _ENDS)})


def _read_at(stream: BinaryIO, position: int) -> bytes:
    return os.pread(stream.fileno(), _ENDS, position)


def _refuse_foreign(state: Path) -> None:
    with in_words("Looking at", state):
        names = {entry.name for entry in state.iterdir()} if state.is_dir() else set()
    if _LEDGER not in names and names - _KNOWN:
        raise Refused(
            f"{state} holds {quoted(min(names - _KNOWN))}, so it is not the agent's own folder; "
            "choose an empty or a new one with --state"
        )
