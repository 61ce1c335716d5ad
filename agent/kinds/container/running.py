"""Containers as they run: found, started, stopped, and which host ports ours have."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from agent.errors import Refused, Unavailable
from agent.host import processes, sockets
from agent.host.endpoints import Endpoint
from agent.host.processes import Process
from agent.host.sockets import Holder
from agent.kinds import marks
from agent.kinds.container import state
from agent.kinds.container.state import State
from agent.kinds.engine import LABEL, Engine, EngineFailed
from agent.kinds.kind import Machine, Mark, Standing
from agent.resources import EngineName, specs

log = logging.getLogger(__name__)

_SPARE_SECONDS = 60.0
_TAIL = "20"
_LINE_LENGTH = 300
_HELD_BY = re.compile(r"already in use by (?:container )?\"?([0-9a-f]{64})")


def find(engine: Engine, name: str) -> State | None:
    """The container of exactly this name; None when the engine lists none."""
    fields = engine.inspect("container", name)
    if fields is None:
        return None
    try:
        found = state.read(fields)
    except Refused as error:
        raise EngineFailed(engine.name, f"tell of the container {name}", str(error)) from error
    return found if found.name == name else None  # Engines take the beginning of an id for a name, too.


def mark_of(found: State) -> Mark | None:
    """The mark of an agent, this or another; None when it bears none."""
    label = found.labels.get(LABEL)
    return None if label is None else marks.decode(label.encode())


def standing(found: State | None, name: str, machine: Machine) -> Standing:
    """Whose it is."""
    if found is None:
        return Standing.ABSENT
    label = found.labels.get(LABEL)
    return marks.standing(None if label is None else label.encode(), f"container:{name}", machine.state)


def foreign(engine: EngineName, found: State) -> Unavailable:
    """The failure of a name that somebody else's container has."""
    mark = mark_of(found)
    whose = f"belongs to the agent of {mark.state}" if mark else "is not the agent's"
    return Unavailable(
        f"{engine.value} has a container {found.name} that {whose}; rename or remove that one "
        f"(`{engine.value} rename {found.name} …`), or choose another name."
    )


def process(found: State) -> Process | None:
    """Its first process, while that lives: an engine whose monitor was killed goes on saying that it runs."""
    return processes.find(found.pid) if found.pid else None


def start(engine: Engine, name: str) -> State:
    """Start it; EngineFailed when the engine refuses."""
    engine.run(["start", name], f"start the container {name}")
    found = find(engine, name)
    if found is None:
        raise EngineFailed(engine.name, f"start the container {name}", "it has gone since")
    return found


def stop(engine: Engine, found: State) -> None:
    """Stop it in its own time; the engine kills it after that."""
    seconds = found.stop_timeout + _SPARE_SECONDS
    _insist(engine, ["stop", found.id], f"stop the container {found.name}", seconds)


def discard(engine: Engine, found: State) -> None:
    """Stop and remove it. Its volumes stay."""
    if found.status == "paused":
        engine.run(["unpause", found.id], f"go on with the container {found.name}")  # podman stops no paused one.
    if process(found):
        stop(engine, found)
    _insist(
        engine, ["rm", "--force", found.id], f"remove the container {found.name}", found.stop_timeout + _SPARE_SECONDS
    )


def unlisted_holder(error: EngineFailed) -> str | None:
    """The id that an engine says has the name, when it refuses to give that name again."""
    match = _HELD_BY.search(error.reason)
    return match[1] if match else None


def last_line(engine: Engine, found: State) -> str:
    """The last line with something in it that it wrote; "" when there is none or its log can't be read."""
    answer = engine.run(["logs", "--tail", _TAIL, found.id], "read its log", check=False)
    if answer.code != 0:
        return ""
    # Which of the two streams was written last isn't told: what went wrong is on the second one.
    for output in (answer.stderr, answer.stdout):
        for line in reversed(output.decode(errors="replace").splitlines()):
            said = "".join(filter(str.isprintable, line)).strip()
            if said:
                return said[:_LINE_LENGTH]
    return ""


def port_holders(spec: specs.Container) -> list[Holder]:
    """Who has its host ports open now, be it a container of ours."""
    return sockets.holders(port.endpoint for port in spec.host_ports)


def strangers(holders: Sequence[Holder], engines: Sequence[Engine], machine: Machine) -> list[Holder]:
    """Those that are no container of this state folder's: an engine's own processes hold what it publishes."""
    if not holders:
        return []
    published: list[Endpoint] = []
    pids: set[int] = set()
    for found in _ours(engines, machine):
        published += found.published
        first = process(found)
        if first:
            pids.update({first.pid, *(one.pid for one in processes.descendants(first))})
    return [
        holder
        for holder in holders
        if not any(holder.endpoint.overlaps(one) for one in published) and pids.isdisjoint(holder.pids)
    ]


def _insist(engine: Engine, words: Sequence[str], doing: str, seconds: float) -> None:
    """Have the engine do it, at the second try if need be.

    podman waits in vain, once, for the end of one whose monitor was killed, and refuses to stop one that it is just
    starting again.
    """
    try:
        engine.run(words, doing, seconds=seconds)
    except EngineFailed as error:
        log.debug("tried again: %s", error)
        engine.run(words, doing, seconds=seconds)


def _ours(engines: Sequence[Engine], machine: Machine) -> list[State]:
    found = []
    for engine in engines:
        try:
            listed = engine.inspect_all("container", engine.containers(f"label={LABEL}"))
            found += [state.read(fields) for fields in listed]
        except (Unavailable, Refused):
            continue  # Of one that is off nothing runs.
    return [one for one in found if one.status == "running" and _is_of(one, machine)]


def _is_of(found: State, machine: Machine) -> bool:
    mark = mark_of(found)
    return mark is not None and mark.state == str(machine.state)
