"""The mark on a thing of ours, as bytes and back, and whose a thing is that bears one.

- A mark names the state folder and the id. One of another folder or id, or one that can't be read, is not ours.
"""

from __future__ import annotations

from pathlib import Path

from agent.errors import Refused
from agent.fields import Fields, JsonValue, canonical, parse_json
from agent.kinds.kind import Mark, Standing

_COMMENT = "# mesh-agent: "


def encode(mark: Mark) -> bytes:
    """The bytes of an extended attribute: a JSON object that a person can read as well."""
    fields: dict[str, JsonValue] = {"state": mark.state, "id": mark.id, "found": mark.found, "stamp": mark.stamp}
    return canonical(fields).encode("utf-8")


def decode(data: bytes) -> Mark | None:
    """The mark that `encode` wrote; None for anything else."""
    try:
        fields = Fields(parse_json(data))
        return Mark(fields.text("state"), fields.text("id"), found=fields.flag("found"), stamp=fields.text("stamp"))
    except Refused:
        return None


def encode_line(mark: Mark) -> str:
    """The first line of a file that bears its mark as a comment, as a systemd unit does; without a newline."""
    return f"{_COMMENT}{encode(mark).decode()}"


def decode_line(content: bytes) -> Mark | None:
    """The mark in the first line of a file's content; None when that is no mark."""
    line = content.partition(b"\n")[0]
    return decode(line[len(_COMMENT) :]) if line.startswith(_COMMENT.encode()) else None


def standing(data: bytes | None, id: str, state: Path) -> Standing:
    """Whose an existing thing is that bears `data` (None: no mark), asked as the resource `id` of a state folder."""
    mark = decode(data) if data is not None else None
    if mark is None or (mark.state, mark.id) != (str(state), id):
        return Standing.FOREIGN
    return Standing.FOUND if mark.found else Standing.MADE
