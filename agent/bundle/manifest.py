"""The manifest: size and digest of the document and of every blob. Its own digest is the bundle's."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Refused

DOCUMENT = "bundle.toml"
BLOBS = "blobs/"
BLOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~^%-]{0,199}")


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a bundle, as the manifest has it: size in bytes, digest in lower-case hex."""

    name: str
    size: int
    sha256: str


def of_bytes(name: str, content: bytes) -> Blob:
    """The entry of a file with this content."""
    return of_chunks(name, [content])


def of_chunks(name: str, chunks: Iterable[bytes], pass_on: Callable[[bytes], object] = lambda chunk: None) -> Blob:
    """The entry of a file that comes in pieces, each of which is passed on."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        pass_on(chunk)
        digest.update(chunk)
        size += len(chunk)
    return Blob(name, size, digest.hexdigest())


def encode(document: bytes, blobs: Mapping[str, Blob]) -> bytes:
    """The manifest of a bundle with this document and these blobs."""
    files = {BLOBS + blob.name: {"sha256": blob.sha256, "size": blob.size} for blob in blobs.values()}
    about = of_bytes(DOCUMENT, document)
    files[DOCUMENT] = {"sha256": about.sha256, "size": about.size}
    return json.dumps(files, sort_keys=True, indent=1).encode() + b"\n"


def decode(place: Path, encoded: bytes) -> tuple[Blob | None, dict[str, Blob]]:
    """The document's entry, None when there is none, and the blobs' by name, sorted. Refused when it can't be read."""
    document, blobs = None, {}
    try:
        entries = [
            Blob(str(name), int(entry["size"]), str(entry["sha256"])) for name, entry in json.loads(encoded).items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Refused(
            f"The manifest of the bundle in {place} can't be read: copy the file here again, whole."
        ) from error
    for entry in sorted(entries, key=lambda entry: entry.name):
        name = entry.name.removeprefix(BLOBS)
        if entry.name == DOCUMENT:
            document = entry
        elif entry.name != name and BLOB_NAME.fullmatch(name) and entry.size >= 0:
            blobs[name] = Blob(name, entry.size, entry.sha256)
        else:
            raise Refused(f"The manifest of the bundle in {place} lists {entry.name!r}, which no bundle can hold.")
    return document, blobs
