"""Ending a service: all of it, gently first, within its time.

- The main process is asked first and alone, because it may know how to end the others (PostgreSQL, RabbitMQ's `sh`).
  When it is gone, or has had half of the time, all that is left is asked as well.
- What is still there when the time is over is killed.
"""

from __future__ import annotations

import logging
import signal
import time

from agent.errors import Unavailable
from agent.host import cgroups, processes
from agent.host.processes import Process
from agent.kinds.service import running
from agent.kinds.service.record import Identity
from agent.kinds.service.running import Running

log = logging.getLogger(__name__)

_POLL = 0.05
_GROUP_SECONDS = 2.0


def stop(identity: Identity, what: Running, number: signal.Signals, seconds: float) -> None:
    """End every process of the service. Unavailable when one outlives even SIGKILL."""
    deadline = time.monotonic() + seconds
    known = set(what.members)

    def living() -> set[Process]:
        found = running.members(identity, known)
        known.update(found)
        return found

    if what.main is not None:
        processes.send(what.main, number)
        while processes.is_alive(what.main) and time.monotonic() < deadline - seconds / 2:
            living()  # What it starts meanwhile may be found only as its child.
            time.sleep(_POLL)
    # Until a fresh look finds nothing: one may have forked and died while it was being looked for.
    while living():
        processes.end(living, number, max(deadline - time.monotonic(), 0.0))
    _remove_group(identity)


def _remove_group(identity: Identity) -> None:
    deadline = time.monotonic() + _GROUP_SECONDS
    while (group := cgroups.find(identity.group)) is not None:
        try:
            cgroups.remove(group)
        except Unavailable as error:  # The kernel may need a moment more than its last process.
            if time.monotonic() >= deadline:
                log.debug("An empty control group stays: %s", error)
                return
            time.sleep(_POLL)
