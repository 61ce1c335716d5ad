"""What the agent notes of a container of its own, outside of the engine, durably and before it is made.

- A name that an engine holds without listing it is ours if there is a note of it; without one it is not touched.
- Volumes outlive their container: those that nobody named are only known by this note.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import Refused
from agent.fields import Fields, canonical, parse_json
from agent.host import directories, files
from agent.kinds.kind import Machine
from agent.resources import EngineName

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Note:
    """`engine` is where it was made last; `ready` the run (`State.run`) that was seen ready, "" if none was.

    `anonymous` are volumes that nobody named, by where they are mounted.
    """

    engine: EngineName
    ready: str = ""
    anonymous: Mapping[str, str] = field(default_factory=dict)


def read(machine: Machine, name: str) -> Note | None:
    """The note of a container; None when there is none that can be read."""
    path = _place(machine, name)
    content = files.read(path, uid=os.geteuid())
    if content is None:
        return None
    try:
        fields = Fields(parse_json(content), str(path))
        return Note(EngineName(fields.text("engine")), fields.text("ready"), fields.text_table("anonymous"))
    except (Refused, ValueError) as error:
        log.warning("The note of a container can't be read and is taken for lost: %s", error)
        return None


def write(machine: Machine, name: str, note: Note) -> None:
    """Keep it."""
    path, uid, gid = _place(machine, name), os.geteuid(), os.getegid()
    for folder in (path.parent.parent, path.parent):
        directories.make(folder, mode=0o700, uid=uid, gid=gid)
    content = canonical({"engine": note.engine.value, "ready": note.ready, "anonymous": dict(note.anonymous)})
    files.write(path, content.encode(), mode=0o600, uid=uid, gid=gid)


def remove(machine: Machine, name: str) -> None:
    """Forget it."""
    files.remove(_place(machine, name), uid=os.geteuid())


def _place(machine: Machine, name: str) -> Path:
    return machine.state / "run" / "containers" / f"{name}.json"
