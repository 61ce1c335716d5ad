"""What the agent did for a package that it installs: noted before it begins, so that none of it is forgotten."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Refused
from agent.fields import Fields, canonical, parse_json
from agent.host import files


@dataclass(frozen=True, slots=True)
class Note:
    """The units masked, the folders made for them; the digests of the carried files that were last installed."""

    masks: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    carried: tuple[str, ...] = ()


def read_note(path: Path) -> Note | None:
    """The note at `path`; None when there is none. One that can't be read says only that it is there."""
    content = files.read(path, uid=os.geteuid())
    if content is None:
        return None
    try:
        fields = Fields(parse_json(content), str(path))
        folders = tuple(Path(folder) for folder in fields.texts("folders"))
        return Note(fields.texts("masks"), folders, fields.texts("carried", ()))
    except Refused:
        return Note()


def write_note(path: Path, note: Note) -> None:
    """Keep the note, durably; its folder must exist."""
    content = canonical(
        {
            "masks": list(note.masks),
            "folders": [str(folder) for folder in note.folders],
            "carried": list(note.carried),
        }
    )
    files.write(path, content.encode(), mode=0o600, uid=os.geteuid(), gid=os.getegid())
