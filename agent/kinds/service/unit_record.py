"""Where a unit's files are, and what is written down of a start of it: enough to know whether it is still that one.

- Losing the record loses little: what runs carries stamp and watched files in its environment as well.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Refused
from agent.fields import Fields, canonical, parse_json
from agent.host import directories, files, systemd

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A service of one state folder as a unit."""

    state: Path
    name: str

    @property
    def unit(self) -> str:
        return f"{self.name}.service"

    @property
    def file(self) -> Path:
        return systemd.FOLDER / self.unit

    @property
    def environment(self) -> Path:
        """What only root may read of its environment."""
        return self.state / "run" / "units" / f"{self.name}.env"

    @property
    def record(self) -> Path:
        return self.state / "run" / "units" / f"{self.name}.json"


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a unit; `invocation` is systemd's own name for it, the rest as of a detached service's start."""

    invocation: str
    stamp: str
    watched: Mapping[str, str]
    touched: str
    ready: bool = False


def read(path: Path) -> Start | None:
    """The recorded start; None when there is none that can be read."""
    content = files.read(path, uid=os.geteuid())
    if content is None:
        return None
    try:
        fields = Fields(parse_json(content), str(path))
        return Start(
            invocation=fields.text("invocation"),
            stamp=fields.text("stamp"),
            watched=fields.text_table("watched"),
            touched=fields.text("touched"),
            ready=fields.flag("ready"),
        )
    except Refused as error:
        log.warning("The record of a unit can't be read and is taken for lost: %s", error)
        return None


def write(path: Path, start: Start) -> None:
    """Keep it, durably; its folder must exist."""
    content = canonical(
        {
            "invocation": start.invocation,
            "stamp": start.stamp,
            "watched": dict(start.watched),
            "touched": start.touched,
            "ready": start.ready,
        }
    )
    files.write(path, content.encode(), mode=0o600, uid=os.geteuid(), gid=os.getegid())


def make_folder(place: Place) -> None:
    """Make the folder that the record and the environment lie in."""
    folder = place.record.parent
    for path in (folder.parent, folder):
        directories.make(path, mode=0o700, uid=os.geteuid(), gid=os.getegid())
