"""A bundle as its author has it: `bundle.toml` and, beside it, `blobs/`."""

from __future__ import annotations

from pathlib import Path

from agent.bundle.files import read_chunks
from agent.bundle.manifest import BLOB_NAME, BLOBS, DOCUMENT
from agent.errors import Refused


def read_document(folder: Path) -> bytes:
    """Its document, as it is. Refused when it can't be read."""
    return b"".join(read_chunks(folder / DOCUMENT))


def blob_paths(folder: Path) -> dict[str, Path]:
    """Its blobs by name, sorted. Refused for what can be none."""
    paths = sorted((folder / BLOBS).iterdir()) if (folder / BLOBS).is_dir() else []
    for path in paths:
        if not BLOB_NAME.fullmatch(path.name):
            raise Refused(f"{path} can't be a blob: its name is to be letters, digits and `._+~^%-`, no sign first.")
        if not path.is_file():
            raise Refused(f"{path} can't be a blob: blobs are plain files, without folders between.")
    return {path.name: path for path in paths}
