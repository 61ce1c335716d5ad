"""The machine's processes, read from /proc, and how they are ended.

- A process is its pid and its start time, so that a pid that was given out again is never taken for it.
- A zombie is dead.
- Signals go through a pidfd where the kernel has them: no pid changes hands between check and signal.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agent.errors import Unavailable

_PROC = Path("/proc")
_COMMAND_LENGTH = 200
_KILL_PATIENCE = 10.0
_POLL = 0.05


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """One process; `started` is in clock ticks since boot (field 22 of /proc/PID/stat, proc(5))."""

    pid: int
    started: int


class _Stat(NamedTuple):
    process: Process
    parent: int
    state: bytes

    @property
    def alive(self) -> bool:
        return self.state not in {b"Z", b"X", b"x"}


def find(pid: int) -> Process | None:
    """The living process with this pid."""
    found = _stat(pid)
    return found.process if found and found.alive else None


def current() -> Process:
    """This very process."""
    found = find(os.getpid())
    if found is None:
        raise Unavailable("/proc does not show this process; mount it (mount -t proc proc /proc).")
    return found


def is_alive(process: Process) -> bool:
    """Whether this process, not another with its pid, is there and no zombie."""
    return find(process.pid) == process


def is_suspended(process: Process) -> bool:
    """Whether it was stopped by a signal or a tracer: it does nothing, not even end, until it is let go on."""
    found = _stat(process.pid)
    return found is not None and found.process == process and found.state in {b"T", b"t"}


def with_environment(name: str, value: str) -> list[Process]:
    """The living processes that were started with NAME=VALUE in their environment."""
    wanted = os.fsencode(f"{name}={value}")
    found = []
    for pid in _pids():
        with suppress(OSError):
            if wanted in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                process = find(pid)
                if process is not None:
                    found.append(process)
    return found


def descendants(of: Process) -> list[Process]:
    """The living children of a living process, their children and so on, itself left out."""
    if not is_alive(of):
        return []
    children: dict[int, list[_Stat]] = {}
    for pid in _pids():
        found = _stat(pid)
        if found is not None:
            children.setdefault(found.parent, []).append(found)
    result: list[Process] = []
    waiting = [of.pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child.process.pid)
            if child.alive:
                result.append(child.process)
    return sorted(result)


def command(pid: int) -> str:
    """The command line of a process as a shell would take it, shortened; its name where it has none."""
    with suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        line = shlex.join(word.decode(errors="replace") for word in words)
        if words != [b""]:
            return line if len(line) <= _COMMAND_LENGTH else line[: _COMMAND_LENGTH - 1] + "…"
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return "unknown"


def send(process: Process, number: signal.Signals) -> None:
    """Signals this process; one that has ended is left alone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # A Python or kernel without pidfds.
        if is_alive(process):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        return
    try:
        if is_alive(process):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def end(
    find_all: Callable[[], Collection[Process]],
    stop_signal: signal.Signals = signal.SIGTERM,
    timeout: float = 30.0,
) -> None:
    """Ends all that `find_all` finds: the signal, up to `timeout` seconds of waiting, then SIGKILL.

    Returns when nothing of what was found ever lives any more; Unavailable when something outlives SIGKILL.
    """
    known = set(find_all())

    def find_living() -> list[Process]:
        # Also what was found once and isn't now: a child whose parent, by which it was found, has ended.
        known.update(find_all())
        return sorted(process for process in known if is_alive(process))

    for process in known:
        send(process, stop_signal)
    if _gone(find_living, timeout, kill=False) or _gone(find_living, _KILL_PATIENCE, kill=True):
        return
    left = ", ".join(f"{process.pid} ({command(process.pid)})" for process in find_living())
    raise Unavailable(f"These processes do not end, even by SIGKILL: {left}; see why (ps -o stat,wchan).")


def _gone(find_all: Callable[[], Collection[Process]], patience: float, *, kill: bool) -> bool:
    deadline = time.monotonic() + patience
    while left := find_all():
        if time.monotonic() >= deadline:
            return False
        if kill:  # Again at each turn: what is being killed may still start others.
            for process in left:
                send(process, signal.SIGKILL)
        time.sleep(_POLL)
    return True


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdecimal())


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name, in brackets, may itself hold spaces and brackets; the last bracket ends it.
    fields = text.rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return _Stat(Process(pid, int(fields[19])), int(fields[1]), fields[0])
