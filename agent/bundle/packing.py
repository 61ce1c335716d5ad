"""Packing: an agent file that carries another bundle, from one that carries any or none.

Every blob is read once, from its beginning to its end, and written where it will stay; its digest is taken on the way.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO

from agent.build import BUILD_MEMBER
from agent.bundle import archive, folder, manifest
from agent.bundle.archive import MANIFEST, MEMBERS
from agent.bundle.bundle import Bundle, open_bundle, read_toml
from agent.bundle.files import CHUNK, DAMAGE, damaged, read_chunks
from agent.bundle.images import archive_of
from agent.bundle.manifest import BLOB_NAME, DOCUMENT
from agent.errors import Refused

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time that every member of an archive bears, so that the same content is the same bytes (the earliest a
zip knows)."""

Source = Callable[[], Iterable[bytes]]
"""Begins to read something, in pieces."""


def pack(agent_file: Path, author: Path, output: Path, images: Mapping[str, Source] | None = None) -> Bundle:
    """Write `output`: the agent file `agent_file` carrying the bundle in the folder `author` instead of its own, and
    return that.

    `images` are archives of images to carry beside its blobs, by the images' names. `output` appears whole or not at
    all, executable; the two may be the same file. Refused when either can't be read, or the folder holds no proper
    bundle; what an image's source raises is passed on.
    """
    document = folder.read_document(author)
    name, _ = read_toml(author, document)
    sources = _sources(author, images or {})
    part = output.with_name(output.name + ".part")
    try:
        with (
            zipfile.ZipFile(agent_file) as source,
            part.open("wb") as target,
            os.fdopen(os.memfd_create("archive"), "w+b") as zipped,
        ):
            _copy_header(agent_file, source, target)
            blobs = {blob: manifest.of_chunks(blob, begin(), target.write) for blob, begin in sorted(sources.items())}
            _write_archive(source, zipped, name, document, manifest.encode(document, blobs))
            zipped.seek(0)
            while chunk := zipped.read(CHUNK):
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        part.chmod(0o755)
        part.replace(output)
    except DAMAGE as error:
        raise damaged(agent_file, error) from error
    except OSError as error:
        raise Refused(
            f"Cannot pack {author} into {output}: {error.strerror} ({error.filename or part.parent})."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return open_bundle(output)


def add_member(
    target: zipfile.ZipFile,
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
    with target.open(member, "w") as stream:
        for chunk in chunks:
            stream.write(chunk)


def _sources(author: Path, images: Mapping[str, Source]) -> dict[str, Source]:
    sources: dict[str, Source] = {name: partial(read_chunks, path) for name, path in folder.blob_paths(author).items()}
    for image, source in images.items():
        name = archive_of(image)
        if name in sources:
            raise Refused(f"{author} holds the image {image} already, as its blob {name}; take one of the two away.")
        if not BLOB_NAME.fullmatch(name):
            raise Refused(f"The image {image} can't be carried by its name, which is too long; give it another.")
        sources[name] = source
    return sources


def _copy_header(agent_file: Path, source: zipfile.ZipFile, target: IO[bytes]) -> None:
    """Copy the lines of shell that start the file; the blobs that it carries follow them and stay behind."""
    carried = archive.read(agent_file, source)
    end = carried.start if carried else archive.beginning(source)
    header = b"".join(read_chunks(agent_file, size=end))
    if not (header.startswith(b"#!") and header.endswith(b"\n")):
        raise damaged(agent_file, "its first lines are not where they were")
    target.write(header)


def _write_archive(source: zipfile.ZipFile, zipped: IO[bytes], name: str, document: bytes, about: bytes) -> None:
    """The archive of another agent file, with this bundle instead of its own."""
    with zipfile.ZipFile(zipped, "w", allowZip64=False) as target:
        for member in source.infolist():
            if member.filename == BUILD_MEMBER:
                record = _record(source.read(member), name, hashlib.sha256(about).hexdigest())
                add_member(target, BUILD_MEMBER, [record], len(record), member.compress_type)
            elif not member.filename.startswith(MEMBERS):
                with source.open(member) as stream:
                    chunks = iter(partial(stream.read, CHUNK), b"")
                    add_member(target, member.filename, chunks, member.file_size, member.compress_type)
        add_member(target, MEMBERS + DOCUMENT, [document], len(document))
        add_member(target, MEMBERS + MANIFEST, [about], len(about))


def _record(encoded: bytes, name: str, digest: str) -> bytes:
    """The build's own record, naming the bundle; so what a file carries can be told without looking at all of it."""
    record = {**json.loads(encoded), "bundle": {"digest": digest, "name": name}}
    return json.dumps(record, sort_keys=True).encode() + b"\n"
