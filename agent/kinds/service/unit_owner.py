"""Whose a unit is: by the first line of its file, which names a state folder and a service.

- One of the machine's own, of a package's or of another state folder's is told, and never touched.
"""

from __future__ import annotations

import os

from agent.errors import Unavailable
from agent.host import files, systemd
from agent.host.sockets import Holder
from agent.kinds import marks
from agent.kinds.kind import Machine
from agent.kinds.service.unit_record import Place


def require_ours(place: Place, found: systemd.Unit) -> bytes | None:
    """What is in the unit's file; None when there is none. Unavailable when the unit is somebody else's."""
    content = read(place)
    if content is not None:
        theirs = whose(place, content)
        if theirs:
            raise Unavailable(f"{theirs} The service {place.name} needs that name: move it away or choose another one.")
    elif found.fragment not in (None, place.file) or found.load == "masked":
        raise Unavailable(
            f"This machine has a unit {place.unit} of its own ({found.fragment or found.load}), so the service "
            f"{place.name} can't be made; choose another name."
        )
    return content


def read(place: Place) -> bytes | None:
    """What is in the unit's file; None when there is none."""
    # A link, which masks or stands for another unit, is told as what it is.
    if place.file.is_symlink():
        return str(place.file.readlink()).encode()
    return files.read(place.file, uid=os.geteuid())


def whose(place: Place, content: bytes) -> str:
    """Whose the unit is when it isn't ours, as a sentence."""
    mark = marks.decode_line(content)
    if mark is None:
        return f"{place.file} is this machine's own unit, not the agent's, and was left."
    if mark.state != str(place.state):
        return f"{place.file} is of the agent in {mark.state}, another state folder, and was left."
    return "" if mark.id == f"service:{place.name}" else f"{place.file} is the agent's own, and was left."


def is_held_by_one(holder: Holder, machine: Machine) -> bool:
    """Whether a port is held by a unit of this state folder."""
    for unit in {systemd.unit_of(pid) for pid in holder.pids} - {""}:
        place = Place(machine.state, unit.removesuffix(".service"))
        content = read(place)
        if content is not None and not whose(place, content):
            return True
    return False
