"""The bundle: packed and opened again, streamed, and every way of being damaged told in words."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from agent.bundle import CHUNK, Blob, open_bundle, pack, verify
from agent.errors import Refused

HEADER = b"#!/bin/sh\nexec python3\n"
BIG = bytes(range(256)) * 8192 + b"end"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle on its author's side."""
    path = tmp_path / "bundle"
    (path / "blobs").mkdir(parents=True)
    (path / "bundle.toml").write_text(
        'name = "small"\nunheard = "of"\n\n[[resource]]\nkind = "file"\nname = "/x"\nblob = "big.bin"\n'
    )
    (path / "blobs/big.bin").write_bytes(BIG)
    (path / "blobs/empty").touch()
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """An agent file that carries no bundle yet."""
    path = tmp_path / "plain"
    with path.open("wb") as stream:
        stream.write(HEADER)
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("__main__.py", "print('started')\n")
            archive.writestr("site-packages/one.py", "ONE = 1\n" * 1000, zipfile.ZIP_DEFLATED)
    return path


@pytest.fixture
def packed(tmp_path: Path, plain: Path, folder: Path) -> Path:
    path = tmp_path / "packed"
    pack(plain, folder, path)
    return path


def rewrite(path: Path, changes: dict[str, bytes | None], added: dict[str, bytes] | None = None) -> None:
    """Write the archive anew with members changed, or left out where None."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members.update(added or {})
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, **changes}.items():
            if content is not None:
                archive.writestr(name, content)


def test_folder_and_file_are_one_bundle(folder: Path, packed: Path) -> None:
    authored, carried = open_bundle(folder), open_bundle(packed)
    assert carried.name == "small"
    assert carried.document == {
        "name": "small",
        "unheard": "of",
        "resource": [{"kind": "file", "name": "/x", "blob": "big.bin"}],
    }
    assert carried.blobs == {
        "big.bin": Blob("big.bin", len(BIG), hashlib.sha256(BIG).hexdigest()),
        "empty": Blob("empty", 0, hashlib.sha256(b"").hexdigest()),
    }
    assert (carried.digest, carried.document, carried.blobs) == (
        authored.digest,
        authored.document,
        authored.blobs,
    )
    for bundle in (authored, carried):
        verify(bundle)
        chunks = list(bundle.read_blob("big.bin"))
        assert b"".join(chunks) == BIG
        assert max(map(len, chunks)) <= CHUNK
        assert list(bundle.read_blob("empty")) == []


def test_digest_stands_for_every_byte(folder: Path) -> None:
    before = open_bundle(folder).digest
    (folder / "blobs/empty").write_text("no more")
    between = open_bundle(folder).digest
    (folder / "bundle.toml").write_text('name = "small"\n')
    assert len({before, between, open_bundle(folder).digest}) == 3


def test_packed_file_keeps_header_and_code(packed: Path, plain: Path) -> None:
    assert packed.read_bytes().startswith(HEADER)
    assert packed.stat().st_mode & 0o777 == 0o755
    with zipfile.ZipFile(packed) as new, zipfile.ZipFile(plain) as old:
        for name in old.namelist():
            assert new.read(name) == old.read(name)
            assert new.getinfo(name).compress_type == old.getinfo(name).compress_type
        assert new.getinfo("bundle/blobs/big.bin").compress_type == zipfile.ZIP_STORED
        assert json.loads(new.read("bundle/manifest.json"))["blobs/big.bin"] == {
            "sha256": hashlib.sha256(BIG).hexdigest(),
            "size": len(BIG),
        }


def test_packing_twice_gives_the_same_bytes(tmp_path: Path, packed: Path, folder: Path) -> None:
    again = tmp_path / "again"
    pack(packed, folder, again)
    assert again.read_bytes() == packed.read_bytes()


def test_another_bundle_replaces_the_whole_of_the_first(tmp_path: Path, packed: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "bundle.toml").write_text('name = "other"\n')
    bundle = pack(packed, other, packed)
    assert (bundle.name, dict(bundle.blobs)) == ("other", {})
    with zipfile.ZipFile(packed) as archive:
        assert "bundle/blobs/big.bin" not in archive.namelist()


def test_failed_pack_leaves_what_was_there(packed: Path, tmp_path: Path) -> None:
    before = packed.read_bytes()
    with pytest.raises(Refused):
        pack(packed, tmp_path / "nowhere", packed)
    assert packed.read_bytes() == before
    assert not packed.with_name("packed.part").exists()


def test_changed_blob_is_named_with_both_digests(packed: Path) -> None:
    changed = b"x" * len(BIG)
    rewrite(packed, {"bundle/blobs/big.bin": changed})
    bundle = open_bundle(packed)
    with pytest.raises(Refused) as refused:
        verify(bundle)
    for part in ("big.bin", hashlib.sha256(BIG).hexdigest(), hashlib.sha256(changed).hexdigest()):
        assert part in str(refused.value)


def test_changed_byte_in_the_archive_is_told(packed: Path) -> None:
    content = bytearray(packed.read_bytes())
    content[content.index(BIG) + 1000] ^= 1
    packed.write_bytes(content)
    with pytest.raises(Refused, match="damaged"):
        verify(open_bundle(packed))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"bundle/bundle.toml": b'name = "other"\n' + b"#" * 64}, "has 79 bytes and should have"),
        ({"bundle/blobs/big.bin": b"short"}, "has 5 bytes and should have"),
        ({"bundle/blobs/big.bin": None}, "big.bin is missing"),
        ({"bundle/blobs/more": b""}, "more is not in its manifest"),
        ({"bundle/manifest.json": None}, "no manifest"),
        ({"bundle/bundle.toml": None}, "no bundle.toml"),
        ({"bundle/manifest.json": b"{"}, "manifest .* can't be read"),
        ({"bundle/manifest.json": b"[]"}, "manifest .* can't be read"),
        ({"bundle/manifest.json": b'{"bundle.toml": {"size": 1}}'}, "manifest .* can't be read"),
        ({"bundle/manifest.json": b'{"../x": {"size": 1, "sha256": ""}}'}, "which no bundle can hold"),
    ],
)
def test_tampered_bundle_is_refused(packed: Path, changes: dict[str, bytes | None], sentence: str) -> None:
    rewrite(packed, changes)
    with pytest.raises(Refused, match=sentence):
        open_bundle(packed)


def test_document_of_the_same_size_is_compared(packed: Path, folder: Path) -> None:
    content = (folder / "bundle.toml").read_bytes().replace(b"small", b"large")
    rewrite(packed, {"bundle/bundle.toml": content})
    with pytest.raises(Refused, match=r"bundle\.toml .* is not what was packed"):
        open_bundle(packed)


def test_file_cut_short_is_refused(packed: Path) -> None:
    content = packed.read_bytes()
    for length in (0, 10, len(content) // 2, len(content) - 1):
        packed.write_bytes(content[:length])
        with pytest.raises(Refused, match="damaged or no agent file"):
            open_bundle(packed)


def test_file_without_a_bundle_is_told(plain: Path) -> None:
    with pytest.raises(Refused, match="carries no bundle"):
        open_bundle(plain)


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No such file"):
        open_bundle(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (b"name = ", "is not TOML"),
        (b'name = "a\xff"', "is not UTF-8"),
        (b"", "doesn't name the bundle"),
        (b"name = 7", "doesn't name the bundle"),
        (b'name = "Upper"', "doesn't name the bundle"),
        (b'name = "a/b"', "doesn't name the bundle"),
    ],
)
def test_malformed_document_is_refused(folder: Path, document: bytes, sentence: str) -> None:
    (folder / "bundle.toml").write_bytes(document)
    with pytest.raises(Refused, match=sentence):
        open_bundle(folder)


def test_folder_without_a_document_is_told(folder: Path) -> None:
    (folder / "bundle.toml").unlink()
    with pytest.raises(Refused, match=r"bundle\.toml: No such file"):
        open_bundle(folder)


@pytest.mark.parametrize("name", [".hidden", "a b", "-x"])
def test_blob_with_an_odd_name_is_refused(folder: Path, name: str) -> None:
    (folder / "blobs" / name).touch()
    with pytest.raises(Refused, match="can't be a blob"):
        open_bundle(folder)


def test_folder_among_the_blobs_is_refused(folder: Path) -> None:
    (folder / "blobs/sub").mkdir()
    with pytest.raises(Refused, match="plain files"):
        open_bundle(folder)


def test_unknown_blob_is_told(packed: Path) -> None:
    with pytest.raises(Refused, match="carries no blob 'none'"):
        list(open_bundle(packed).read_blob("none"))


def test_blob_that_changes_on_the_authors_side_is_noticed(folder: Path, plain: Path) -> None:
    bundle = open_bundle(folder)
    (folder / "blobs/empty").write_text("no more")
    with pytest.raises(Refused, match="empty"):
        verify(bundle)
