"""What a found thing was before the first touch, kept in the state folder until it is given back.

- One file a resource, `blobs/` and the SHA-256 of its id: a line of JSON (mode, owner, mark), then the content.
- It is written whole or not at all, and durably, so there is never half a memory of a thing.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Refused
from agent.fields import Fields, JsonValue, canonical, parse_json
from agent.host import directories, files
from agent.kinds.kind import Machine


@dataclass(frozen=True, slots=True)
class Previous:
    """`mode` holds the permission bits; `mark` is another agent's, to be given back too."""

    mode: int
    uid: int
    gid: int
    mark: bytes | None


def keep(machine: Machine, id: str, previous: Previous, content: Iterable[bytes] = ()) -> None:
    """Remember a thing, in place of what may have been remembered for this id; Unavailable when there is no room."""
    fields: dict[str, JsonValue] = {
        "id": id,
        "mode": f"{previous.mode:04o}",
        "uid": previous.uid,
        "gid": previous.gid,
        "mark": None if previous.mark is None else base64.b64encode(previous.mark).decode("ascii"),
    }
    place, uid, gid = _place(machine, id), os.geteuid(), os.getegid()
    directories.make(place.parent, mode=0o700, uid=uid, gid=gid)
    files.write(place, _framed(canonical(fields), content), mode=0o600, uid=uid, gid=gid)


def recall(machine: Machine, id: str) -> Previous | None:
    """What is remembered for this id, without its content; None when nothing is."""
    place = _place(machine, id)
    if not place.exists():
        return None
    header = next(files.chunks(place, uid=os.geteuid()), b"").partition(b"\n")[0]
    try:
        fields = Fields(parse_json(header))
        return Previous(
            mode=int(fields.text("mode"), 8),
            uid=fields.integer("uid"),
            gid=fields.integer("gid"),
            mark=fields.base64("mark") if "mark" in fields else None,
        )
    except (Refused, ValueError):
        return None


def content(machine: Machine, id: str) -> Iterator[bytes]:
    """The remembered content, in pieces; Unavailable when nothing is remembered."""
    chunks = files.chunks(_place(machine, id), uid=os.geteuid())
    yield next(chunks, b"").partition(b"\n")[2]
    yield from chunks


def discard(machine: Machine, id: str) -> None:
    """Forget it, once it was given back."""
    files.remove(_place(machine, id), uid=os.geteuid())


def _place(machine: Machine, id: str) -> Path:
    return machine.state / "blobs" / hashlib.sha256(id.encode("utf-8")).hexdigest()


def _framed(header: str, content: Iterable[bytes]) -> Iterator[bytes]:
    yield header.encode("utf-8") + b"\n"
    yield from content
