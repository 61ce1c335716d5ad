"""The turn to serve: one process at a time has it, by a lock beside the store; another one waits, and takes over."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from pathlib import Path

from agent.host import locks

_log = logging.getLogger(__name__)

_TURN_SECONDS = 0.25


def lock_path(state: Path) -> Path:
    """The lock that the serving process holds."""
    return state / "control" / "serve.lock"


def take_turn(state: Path, stack: ExitStack, stop: threading.Event) -> bool:
    """Wait until no other process serves; whether that came before `stop`. The turn is over when `stack` is closed."""
    said = False
    while not stop.is_set():
        try:
            stack.enter_context(locks.hold(lock_path(state)))
        except locks.Held as error:
            if not said:
                said = True
                by = f"process {error.holder.pid}" if error.holder else "another process"
                _log.info("The control plane is served by %s; this one waits, and takes over when that one ends.", by)
            stop.wait(_TURN_SECONDS)
        else:
            return True
    return False
