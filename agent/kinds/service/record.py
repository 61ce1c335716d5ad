"""What is written down of a start, durably and before the program runs: enough to know it again.

- A process is known by pid, start time and boot, so that no other is ever taken for it.
- Losing the file loses little: what runs carries its marks in its environment as well.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Refused
from agent.fields import Fields, canonical, parse_json
from agent.host import directories, files
from agent.host.failures import in_words
from agent.host.processes import Process

log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Identity:
    """A service of one state folder, and where it is known by what."""

    state: Path
    name: str

    @property
    def mark(self) -> str:
        """What its processes carry in their environment."""
        return f"{self.state}:{self.name}"

    @property
    def group(self) -> str:
        """The name of its control group; other state folders' differ."""
        return f"{hashlib.sha256(os.fsencode(self.state)).hexdigest()[:16]}-{self.name}"

    @property
    def record(self) -> Path:
        return self.state / "run" / "services" / f"{self.name}.json"

    @property
    def log(self) -> Path:
        return self.state / "log" / f"{self.name}.log"


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a service.

    `watched` holds the SHA-256 of each watched file as it was then. `log_size` (bytes) is where its own output
    begins in the log. `touched` is how the file that says it is ready looked before (`watches.look_of`). `ready`: it
    was seen ready.
    """

    process: Process
    boot: str
    stamp: str
    watched: Mapping[str, str]
    log_size: int
    touched: str
    ready: bool = False


def read(path: Path) -> Start | None:
    """The recorded start; None when there is none of this boot that can be read."""
    content = files.read(path, uid=os.geteuid())
    if content is None:
        return None
    try:
        start = _decode(Fields(parse_json(content), str(path)))
    except Refused as error:
        log.warning("The record of a service can't be read and is taken for lost: %s", error)
        return None
    return start if start.boot == boot_id() else None


def write(path: Path, start: Start) -> None:
    """Keep it, durably, in a folder that is made when absent."""
    for folder in (path.parent.parent, path.parent):
        directories.make(folder, mode=0o700, uid=os.geteuid(), gid=os.getegid())
    content = canonical(
        {
            "pid": start.process.pid,
            "started": start.process.started,
            "boot": start.boot,
            "stamp": start.stamp,
            "watched": dict(start.watched),
            "log_size": start.log_size,
            "touched": start.touched,
            "ready": start.ready,
        }
    )
    files.write(path, content.encode(), mode=0o600, uid=os.geteuid(), gid=os.getegid())


def boot_id() -> str:
    """What the kernel calls this boot (random(4))."""
    with in_words("Reading", _BOOT_ID):
        return _BOOT_ID.read_text("ascii").strip()


def _decode(fields: Fields) -> Start:
    return Start(
        process=Process(fields.integer("pid", least=1), fields.integer("started")),
        boot=fields.text("boot"),
        stamp=fields.text("stamp"),
        watched=fields.text_table("watched"),
        log_size=fields.integer("log_size"),
        touched=fields.text("touched"),
        ready=fields.flag("ready"),
    )
