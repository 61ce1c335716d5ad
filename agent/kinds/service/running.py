"""What runs of a service: all of it, and nothing that isn't.

- The members of its control group, where it has one: all that it ever started, whatever that did since.
- Every process whose environment carries its mark, and the descendants of all of these and of the recorded one.
  So wrappers, what they leave behind, and children that drop the environment are found; without a control group
  only one is missed that does so *and* has lost the parent by which it could be found.
- A process in another PID namespace that carries the same mark belongs to an agent in a container.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.fields import canonical
from agent.host import cgroups, processes
from agent.host.processes import Process
from agent.kinds.service import record
from agent.kinds.service.record import Identity, Start

_MARK = "AGENT_SERVICE"
_STAMP = "AGENT_SERVICE_STAMP"
_WATCHED = "AGENT_SERVICE_WATCHED"


@dataclass(frozen=True, slots=True)
class Running:
    """`start` is what is recorded of it, `main` its first process while that lives, `members` all that live."""

    start: Start | None
    main: Process | None
    members: frozenset[Process]


def marks(identity: Identity, stamp: str, watched: Mapping[str, str]) -> dict[str, str]:
    """What its processes get in their environment; that they can be known by it without a record."""
    return {_MARK: identity.mark, **stamps(stamp, watched)}


def stamps(stamp: str, watched: Mapping[str, str]) -> dict[str, str]:
    """The part of the marks that says what it was started with."""
    return {_STAMP: stamp, _WATCHED: _digest(watched)}


def look(identity: Identity) -> Running:
    """What runs now."""
    start = record.read(identity.record)
    if start is None:
        found = members(identity)
        return Running(None, _eldest(_marked(identity)), frozenset(found))
    found = members(identity, [start.process])
    return Running(start, start.process if start.process in found else None, frozenset(found))


def members(identity: Identity, known: Iterable[Process] = ()) -> set[Process]:
    """Every living process of a service; `known` are some that were found before, by what no longer holds."""
    found = {process for process in known if processes.is_alive(process)}
    group = cgroups.find(identity.group)
    if group is not None:
        found.update(cgroups.members(group))
    found.update(_marked(identity))
    return found | _descendants(found)


def of_state(state: Path) -> set[Process]:
    """Every living process of any service that this state folder has a record of."""
    found: set[Process] = set()
    for path in Identity(state, "").record.parent.glob("*.json"):
        found |= look(Identity(state, path.stem)).members
    return found


def was_started_with(main: Process, stamp: str) -> bool:
    """Whether a process whose record is lost was started with this stamp."""
    return main in processes.with_environment(_STAMP, stamp)


def has_seen(main: Process, watched: Mapping[str, str]) -> bool:
    """Whether a process whose record is lost was started when the watched files were as they are now."""
    return main in processes.with_environment(_WATCHED, _digest(watched))


def _marked(identity: Identity) -> set[Process]:
    own = _namespace("self")
    return {
        process
        for process in processes.with_environment(_MARK, identity.mark)
        if own is not None and _namespace(str(process.pid)) == own
    }


def _namespace(pid: str) -> Path | None:
    try:
        return Path("/proc", pid, "ns", "pid").readlink()
    except OSError:
        return None


def _eldest(marked: set[Process]) -> Process | None:
    first = marked - _descendants(marked)
    return min(first, key=lambda process: (process.started, process.pid), default=None)


def _descendants(of: set[Process]) -> set[Process]:
    found: set[Process] = set()
    for process in sorted(of, key=lambda process: (process.started, process.pid)):
        if process not in found:
            found.update(processes.descendants(process))
    return found


def _digest(watched: Mapping[str, str]) -> str:
    return hashlib.sha256(canonical(dict(watched)).encode()).hexdigest()
