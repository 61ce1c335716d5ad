"""The bundle: the declared resources and their blobs, as a folder on its author's side and inside the one
file.

Upholds: one file carries exactly one bundle; every byte of it is covered by a manifest of sizes and SHA-256
digests, and nothing is in it that the manifest does not list; blobs are streamed, never held in memory;
whoever reads a blob to its end has read what the manifest promised, or gets `Refused`; packing the same
bundle into the same file twice gives the same bytes. The document is carried, not understood:
`agent.resources` parses it.

On the author's side a bundle is `bundle.toml` and, beside it, a flat folder `blobs/`. In the file, the
archive has them as `bundle/bundle.toml` and `bundle/blobs/NAME`, stored without compression, and the manifest
as `bundle/manifest.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agent.build import BUILD_MEMBER
from agent.errors import Refused

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHUNK = 1024 * 1024
"""How many bytes of a blob are in memory at once."""

DOCUMENT = "bundle.toml"
BLOBS = "blobs/"
MEMBERS = "bundle/"
MANIFEST = "manifest.json"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
BLOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time that every member of an archive bears, so that the same content is the same bytes (the earliest a
zip knows)."""

# What the zip library raises for an archive that is cut short or changed.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a bundle, as the manifest has it: size in bytes, digest in lower-case hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was opened: its document parsed as TOML, its blobs known by name and not yet read.

    `digest` is the SHA-256 of the manifest, so it stands for the document and every blob; it is the same for
    a folder and for the file that was packed from it. `place` is that folder or file.
    """

    name: str
    digest: str
    document: Mapping[str, object]
    blobs: Mapping[str, Blob]
    place: Path

    def read_blob(self, name: str) -> Iterator[bytes]:
        """Yield the blob's bytes in chunks of at most 1 MiB.

        Refused when the bundle has no such blob and, after the last chunk, when size or digest are not the
        manifest's: what was read is to be used only once the iterator has ended.
        """
        blob = self.blobs.get(name)
        if blob is None:
            raise Refused(f"The bundle {self.name} carries no blob {name!r}: put the file into its folder blobs/.")
        digest, size = hashlib.sha256(), 0
        with _open_member(self.place, BLOBS + name) as stream:
            while chunk := stream.read(CHUNK):
                size += len(chunk)
                digest.update(chunk)
                yield chunk
        _compare(self.place, blob, Blob(name, size, digest.hexdigest()))


def open_bundle(path: Path) -> Bundle:
    """Open the bundle in `path`, which is an agent file or a bundle's folder.

    Of a file only the manifest and the document are read, and the sizes compared; of a folder everything is
    read, for want of a manifest. Refused with a sentence when there is no bundle, or it is damaged or
    malformed.
    """
    if path.is_dir():
        return _open_folder(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _open_archive(path, archive)
    except _DAMAGE as error:
        raise _damaged(path, error) from error
    except OSError as error:
        raise Refused(f"Cannot read the bundle in {path}: {error.strerror}.") from error


def verify(bundle: Bundle) -> None:
    """Read every blob to its end; Refused names the first that is not what the manifest says."""
    for name in bundle.blobs:
        for _ in bundle.read_blob(name):
            pass


def pack(agent_file: Path, folder: Path, output: Path) -> Bundle:
    """Write `output`: the agent file `agent_file` carrying the bundle in `folder` instead of its own, and
    return that.

    `output` appears whole or not at all, executable; the two may be the same file. Refused when either can't
    be read, or `folder` holds no proper bundle, or all would be more than 2 GiB (Python before 3.13 starts
    nothing from an archive with 64-bit records).
    """
    bundle = open_bundle(folder)
    part = output.with_name(output.name + ".part")
    try:
        with part.open("wb") as target, zipfile.ZipFile(agent_file) as source:
            _copy_header(agent_file, source, target)
            with zipfile.ZipFile(target, "w", allowZip64=False) as archive:
                for member in source.infolist():
                    if member.filename == BUILD_MEMBER:
                        record = _record(source.read(member), bundle)
                        add_member(archive, BUILD_MEMBER, [record], len(record), member.compress_type)
                    elif not member.filename.startswith(MEMBERS):
                        with source.open(member) as stream:
                            chunks = iter(lambda: stream.read(CHUNK), b"")
                            add_member(archive, member.filename, chunks, member.file_size, member.compress_type)
                _add_bundle(archive, bundle)
            target.flush()
            os.fsync(target.fileno())
        part.chmod(0o755)
        part.replace(output)
    except zipfile.LargeZipFile as error:
        raise Refused(f"The bundle {bundle.name} is too big: a file holds at most 2 GiB in all.") from error
    except _DAMAGE as error:
        raise _damaged(agent_file, error) from error
    except OSError as error:
        raise Refused(f"Cannot pack {folder} into {output}: {error.strerror} ({error.filename}).") from error
    finally:
        part.unlink(missing_ok=True)
    return open_bundle(output)


def add_member(
    archive: zipfile.ZipFile,
    name: str,
    chunks: Iterable[bytes],
    size: int,
    compression: int = zipfile.ZIP_STORED,
) -> None:
    """Add a file of `size` bytes to an archive that is being written, with nothing in it that differs by the
    build."""
    member = zipfile.ZipInfo(name, EPOCH)
    member.compress_type = compression
    member.external_attr = (stat.S_IFREG | 0o644) << 16
    member.file_size = size
    with archive.open(member, "w") as target:
        for chunk in chunks:
            target.write(chunk)


def _open_folder(folder: Path) -> Bundle:
    raw = b"".join(_read_file(folder / DOCUMENT))
    blobs = {}
    for path in sorted((folder / BLOBS).iterdir()) if (folder / BLOBS).is_dir() else []:
        if not BLOB_NAME.fullmatch(path.name):
            raise Refused(f"{path} can't be a blob: its name is to be letters, digits and `._+-`, no sign first.")
        if not path.is_file():
            raise Refused(f"{path} can't be a blob: blobs are plain files, without folders between.")
        digest, size = hashlib.sha256(), 0
        for chunk in _read_file(path):
            digest.update(chunk)
            size += len(chunk)
        blobs[path.name] = Blob(path.name, size, digest.hexdigest())
    return _bundle(folder, raw, blobs, hashlib.sha256(_encode_manifest(raw, blobs)).hexdigest())


def _open_archive(path: Path, archive: zipfile.ZipFile) -> Bundle:
    sizes = {
        member.filename[len(MEMBERS) :]: member.file_size
        for member in archive.infolist()
        if member.filename.startswith(MEMBERS)
    }
    if not sizes:
        raise Refused(f"{path} carries no bundle: build it again, with `--bundle`.")
    if sizes.pop(MANIFEST, None) is None or DOCUMENT not in sizes:
        raise Refused(f"The bundle in {path} has no manifest or no {DOCUMENT}: copy the file here again, whole.")
    encoded = archive.read(MEMBERS + MANIFEST)
    files = _decode_manifest(path, encoded)
    for name in sorted(sizes.keys() ^ files.keys()):
        raise Refused(
            f"The bundle in {path} is not the one that was packed: {name} is "
            f"{'not in its manifest' if name in sizes else 'missing'}. Copy the file here again, whole."
        )
    for name, file in files.items():
        if file.size != sizes[name]:
            raise Refused(
                f"{name} in the bundle of {path} has {sizes[name]} bytes and should have {file.size}: "
                "copy the file here again, whole."
            )
    raw = archive.read(MEMBERS + DOCUMENT)
    _compare(path, files[DOCUMENT], Blob(DOCUMENT, len(raw), hashlib.sha256(raw).hexdigest()))
    blobs = {
        name[len(BLOBS) :]: Blob(name[len(BLOBS) :], file.size, file.sha256)
        for name, file in files.items()
        if name.startswith(BLOBS)
    }
    return _bundle(path, raw, blobs, hashlib.sha256(encoded).hexdigest())


def _bundle(place: Path, raw: bytes, blobs: Mapping[str, Blob], digest: str) -> Bundle:
    try:
        document: Mapping[str, object] = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(f"{DOCUMENT} of {place} is not UTF-8: {error.reason} at byte {error.start}.") from error
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"{DOCUMENT} of {place} is not TOML: {error}.") from error
    name = document.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Refused(
            f'{DOCUMENT} of {place} doesn\'t name the bundle: begin it with `name = "…"`, lower-case '
            "letters, digits and hyphens, 63 at most."
        )
    return Bundle(name, digest, document, blobs, place)


def _encode_manifest(raw: bytes, blobs: Mapping[str, Blob]) -> bytes:
    files = {BLOBS + blob.name: {"sha256": blob.sha256, "size": blob.size} for blob in blobs.values()}
    files[DOCUMENT] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    return json.dumps(files, sort_keys=True, indent=1).encode() + b"\n"


def _decode_manifest(path: Path, encoded: bytes) -> dict[str, Blob]:
    try:
        files = {
            name: Blob(name, int(entry["size"]), str(entry["sha256"])) for name, entry in json.loads(encoded).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Refused(
            f"The manifest of the bundle in {path} can't be read: copy the file here again, whole."
        ) from error
    for name in files:
        if name != DOCUMENT and not (name.startswith(BLOBS) and BLOB_NAME.fullmatch(name[len(BLOBS) :])):
            raise Refused(f"The manifest of the bundle in {path} lists {name!r}, which no bundle can hold.")
    return files


def _record(encoded: bytes, bundle: Bundle) -> bytes:
    """The build's own record, naming the bundle; so what a file carries can be told without looking at all of it."""
    record = {**json.loads(encoded), "bundle": {"digest": bundle.digest, "name": bundle.name}}
    return json.dumps(record, sort_keys=True).encode() + b"\n"


def _add_bundle(archive: zipfile.ZipFile, bundle: Bundle) -> None:
    raw = b"".join(_read_file(bundle.place / DOCUMENT))
    manifest = _encode_manifest(raw, bundle.blobs)
    if hashlib.sha256(manifest).hexdigest() != bundle.digest:
        raise Refused(f"{bundle.place / DOCUMENT} was changed while it was packed: pack it again.")
    for name in sorted(bundle.blobs):
        add_member(archive, MEMBERS + BLOBS + name, bundle.read_blob(name), bundle.blobs[name].size)
    add_member(archive, MEMBERS + DOCUMENT, [raw], len(raw))
    add_member(archive, MEMBERS + MANIFEST, [manifest], len(manifest))


def _copy_header(agent_file: Path, source: zipfile.ZipFile, target: IO[bytes]) -> None:
    """Copy what lies before the archive: the lines of shell that start it."""
    first = min((member.header_offset for member in source.infolist()), default=0)
    with agent_file.open("rb") as stream:
        target.write(stream.read(first))


@contextmanager
def _open_member(place: Path, name: str) -> Iterator[IO[bytes]]:
    try:
        if place.is_dir():
            with (place / name).open("rb") as stream:
                yield stream
        else:
            with zipfile.ZipFile(place) as archive, archive.open(MEMBERS + name) as stream:
                yield stream
    except (*_DAMAGE, KeyError) as error:
        raise _damaged(place, error) from error
    except OSError as error:
        raise Refused(f"Cannot read {name} of the bundle in {place}: {error.strerror}.") from error


def _read_file(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
    except OSError as error:
        raise Refused(f"Cannot read the bundle's {path}: {error.strerror}.") from error


def _compare(place: Path, expected: Blob, actual: Blob) -> None:
    if actual != expected:
        raise Refused(
            f"{expected.name} in the bundle of {place} is not what was packed: its SHA-256 is "
            f"{actual.sha256} ({actual.size} bytes) and should be {expected.sha256} ({expected.size} bytes). "
            "Copy it here again, whole."
        )


def _damaged(path: Path, error: Exception) -> Refused:
    return Refused(f"{path} is damaged or no agent file ({error}): copy it here again, whole.")
