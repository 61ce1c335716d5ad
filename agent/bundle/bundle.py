"""A bundle that was opened, be it in a folder or in an agent file."""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.bundle import archive, folder, manifest
from agent.bundle.files import DAMAGE, damaged, read_chunks
from agent.bundle.manifest import BLOBS, DOCUMENT, Blob
from agent.errors import Refused

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was opened: its document parsed as TOML, its blobs known by name and not yet read.

    `digest` is the SHA-256 of the manifest, so it stands for the document and every blob; it is the same for
    a folder and for the file that was packed from it. `place` is that folder or file; in a file the blobs lie at
    `start`.
    """

    name: str
    digest: str
    document: Mapping[str, object]
    blobs: Mapping[str, Blob]
    place: Path
    start: int = 0

    def read_blob(self, name: str) -> Iterator[bytes]:
        """Yield the blob's bytes in chunks of at most 1 MiB.

        Refused when the bundle has no such blob and, after the last chunk, when size or digest are not the
        manifest's: what was read is to be used only once the iterator has ended.
        """
        blob = self.blobs.get(name)
        if blob is None:
            raise Refused(f"The bundle {self.name} carries no blob {name!r}: put the file into its folder blobs/.")
        digest, size = hashlib.sha256(), 0
        for chunk in self._chunks(blob):
            size += len(chunk)
            digest.update(chunk)
            yield chunk
        archive.compare(self.place, blob, Blob(name, size, digest.hexdigest()))

    def _chunks(self, blob: Blob) -> Iterator[bytes]:
        if self.place.is_dir():
            return read_chunks(self.place / BLOBS / blob.name)
        before = sum(other.size for other in self.blobs.values() if other.name < blob.name)
        return read_chunks(self.place, self.start + before, blob.size)


def open_bundle(path: Path) -> Bundle:
    """Open the bundle in `path`, which is an agent file or a bundle's folder.

    Of a file only the manifest and the document are read, and the sizes compared; of a folder everything is
    read, for want of a manifest. Refused with a sentence when there is no bundle, or it is damaged or
    malformed.
    """
    if path.is_dir():
        return _open_folder(path)
    try:
        with zipfile.ZipFile(path) as opened:
            carried = archive.read(path, opened)
    except DAMAGE as error:
        raise damaged(path, error) from error
    except OSError as error:
        raise Refused(f"Cannot read the bundle in {path}: {error.strerror}.") from error
    if carried is None:
        raise Refused(f"{path} carries no bundle: build it again, with `--bundle`.")
    digest = hashlib.sha256(carried.manifest).hexdigest()
    name, document = read_toml(path, carried.document)
    return Bundle(name, digest, document, carried.blobs, path, carried.start)


def verify(bundle: Bundle) -> None:
    """Read every blob to its end; Refused names the first that is not what the manifest says."""
    for name in bundle.blobs:
        for _ in bundle.read_blob(name):
            pass


def read_toml(place: Path, raw: bytes) -> tuple[str, Mapping[str, object]]:
    """The bundle's name and its document. Refused when it is malformed or names nothing."""
    try:
        document: Mapping[str, object] = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(f"{DOCUMENT} of {place} is not UTF-8: {error.reason} at byte {error.start}.") from error
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"{DOCUMENT} of {place} is not TOML: {error}.") from error
    name = document.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Refused(
            f'{DOCUMENT} of {place} doesn\'t name the bundle: begin it with `name = "…"`, lower-case '
            "letters, digits and hyphens, 63 at most."
        )
    return name, document


def _open_folder(place: Path) -> Bundle:
    raw = folder.read_document(place)
    name, document = read_toml(place, raw)
    blobs = {name: manifest.of_chunks(name, read_chunks(path)) for name, path in folder.blob_paths(place).items()}
    digest = hashlib.sha256(manifest.encode(raw, blobs)).hexdigest()
    return Bundle(name, digest, document, blobs, place)
