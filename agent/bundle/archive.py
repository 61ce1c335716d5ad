"""The bundle's part of an agent file: what its archive holds of it, and where the blobs lie before that."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from agent.bundle import manifest
from agent.bundle.files import damaged
from agent.bundle.manifest import DOCUMENT, Blob
from agent.errors import Refused

MEMBERS = "bundle/"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Carried:
    """`document` and `manifest` as they are in the archive; the blobs, end to end in this order, begin at `start`."""

    document: bytes
    manifest: bytes
    blobs: dict[str, Blob]
    start: int


def read(path: Path, archive: zipfile.ZipFile) -> Carried | None:
    """What the agent file `path` carries; None when that is nothing. Refused when it isn't what was packed.

    Nothing of the blobs is read. May raise whatever the zip library does for an archive that is damaged.
    """
    sizes = {
        member.filename[len(MEMBERS) :]: member.file_size
        for member in archive.infolist()
        if member.filename.startswith(MEMBERS)
    }
    if not sizes:
        return None
    if MANIFEST not in sizes or DOCUMENT not in sizes:
        raise Refused(f"The bundle in {path} has no manifest or no {DOCUMENT}: copy the file here again, whole.")
    for name in sorted(sizes.keys() - {MANIFEST, DOCUMENT}):
        raise _another(path, f"{name} is not in its manifest")
    encoded = archive.read(MEMBERS + MANIFEST)
    entry, blobs = manifest.decode(path, encoded)
    if entry is None:
        raise _another(path, f"{DOCUMENT} is not in its manifest")
    document = archive.read(MEMBERS + DOCUMENT)
    compare(path, entry, manifest.of_bytes(DOCUMENT, document))
    start = beginning(archive) - sum(blob.size for blob in blobs.values())
    if start < 0:
        raise damaged(path, "bytes are missing before its archive")
    return Carried(document, encoded, blobs, start)


def beginning(archive: zipfile.ZipFile) -> int:
    """Where an agent file's archive begins."""
    return min((member.header_offset for member in archive.infolist()), default=0)


def compare(place: Path, expected: Blob, actual: Blob) -> None:
    """Refused when what was read isn't what the manifest says."""
    if actual != expected:
        raise Refused(
            f"{expected.name} in the bundle of {place} is not what was packed: its SHA-256 is "
            f"{actual.sha256} ({actual.size} bytes) and should be {expected.sha256} ({expected.size} bytes). "
            "Copy it here again, whole."
        )


def _another(path: Path, why: str) -> Refused:
    return Refused(f"The bundle in {path} is not the one that was packed: {why}. Copy the file here again, whole.")
