"""The bundle: packed and opened again, streamed, and every way of being damaged told in words."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.bundle import CHUNK, Blob, archive_of, image_of, open_bundle, pack, verify
from agent.errors import Refused, Unavailable

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


def split(path: Path) -> tuple[bytes, bytes]:
    """What lies before an agent file's archive, and the archive."""
    content = path.read_bytes()
    begin = content.index(b"PK\3\4")
    return content[:begin], content[begin:]


def rewrite(path: Path, changes: dict[str, bytes | None]) -> None:
    """Write the archive anew with members changed, or left out where None."""
    before, archive = split(path)
    with zipfile.ZipFile(io.BytesIO(archive)) as old:
        members: dict[str, bytes | None] = {name: old.read(name) for name in old.namelist()}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as new:
        for name, content in {**members, **changes}.items():
            if content is not None:
                new.writestr(name, content)
    path.write_bytes(before + target.getvalue())


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
    # The blobs lie between, sorted and as they are; the second is empty.
    assert split(packed)[0] == HEADER + BIG
    assert packed.stat().st_mode & 0o777 == 0o755
    with zipfile.ZipFile(packed) as new, zipfile.ZipFile(plain) as old:
        for name in old.namelist():
            assert new.read(name) == old.read(name)
            assert new.getinfo(name).compress_type == old.getinfo(name).compress_type
        assert set(new.namelist()) - set(old.namelist()) == {"bundle/bundle.toml", "bundle/manifest.json"}
        assert json.loads(new.read("bundle/manifest.json"))["blobs/big.bin"] == {
            "sha256": hashlib.sha256(BIG).hexdigest(),
            "size": len(BIG),
        }


def test_the_archives_own_offsets_do_not_grow_with_the_blobs(packed: Path) -> None:
    archive = split(packed)[1]
    with zipfile.ZipFile(io.BytesIO(archive)) as alone, zipfile.ZipFile(packed) as whole:
        assert alone.infolist()[0].header_offset == 0
        assert whole.infolist()[0].header_offset == len(HEADER) + len(BIG)


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
    assert split(packed)[0] == HEADER


def test_images_are_blobs_called_by_their_names(tmp_path: Path, plain: Path, folder: Path, packed: Path) -> None:
    name = "docker.io:443/library/web-1_x:1.0@sha256:" + "0" * 64
    bundle = pack(packed, folder, tmp_path / "more", {name: lambda: [b"one", b"two"]})
    blob = f"docker.io%3A443%2Flibrary%2Fweb-1_x%3A1.0%40sha256%3A{'0' * 64}.image.tar"
    assert (archive_of(name), image_of(blob)) == (blob, name)
    assert [image_of(other) for other in ("big.bin", "x.tar", "%zz.image.tar", "%3a.image.tar")] == [None] * 4
    assert list(bundle.blobs) == ["big.bin", blob, "empty"]
    verify(bundle)
    assert b"".join(bundle.read_blob(blob)) == b"onetwo"
    # Nobody can tell it from one that its author put there, and one that is there isn't taken twice.
    (folder / "blobs" / blob).write_bytes(b"onetwo")
    pack(plain, folder, plain)
    assert plain.read_bytes() == (tmp_path / "more").read_bytes()
    assert open_bundle(folder).digest == bundle.digest
    with pytest.raises(Refused, match=r"holds the image .* already"):
        pack(plain, folder, plain, {name: lambda: [b"one"]})
    with pytest.raises(Refused, match="name, which is too long"):
        pack(plain, folder, plain, {"a" * 191: lambda: [b"one"]})


def test_an_image_that_breaks_off_leaves_what_was_there(packed: Path, folder: Path) -> None:
    before = packed.read_bytes()

    def broken() -> Iterator[bytes]:
        yield b"some"
        raise Unavailable("The engine has died.")

    with pytest.raises(Unavailable, match="The engine has died"):
        pack(packed, folder, packed, {"app:1": broken})
    assert packed.read_bytes() == before
    assert not packed.with_name("packed.part").exists()


def test_failed_pack_leaves_what_was_there(packed: Path, tmp_path: Path) -> None:
    before = packed.read_bytes()
    with pytest.raises(Refused):
        pack(packed, tmp_path / "nowhere", packed)
    assert packed.read_bytes() == before
    assert not packed.with_name("packed.part").exists()


def test_changed_blob_is_named_with_both_digests(packed: Path) -> None:
    content = packed.read_bytes()
    at = content.index(BIG) + 1000
    packed.write_bytes(content[:at] + b"x" + content[at + 1 :])
    changed = BIG[:1000] + b"x" + BIG[1001:]
    bundle = open_bundle(packed)
    with pytest.raises(Refused) as refused:
        verify(bundle)
    for part in ("big.bin", hashlib.sha256(BIG).hexdigest(), hashlib.sha256(changed).hexdigest()):
        assert part in str(refused.value)


def test_changed_byte_in_the_archive_is_told(packed: Path) -> None:
    content = bytearray(packed.read_bytes())
    content[content.index(b'unheard = "of"')] ^= 1
    packed.write_bytes(content)
    with pytest.raises(Refused, match="damaged"):
        open_bundle(packed)


@pytest.mark.parametrize("lost", [1, len(BIG)])
def test_lost_bytes_among_the_blobs_are_told(packed: Path, folder: Path, lost: int) -> None:
    content = packed.read_bytes()
    at = content.index(BIG)
    packed.write_bytes(content[:at] + content[at + lost :])
    with pytest.raises(Refused, match=r"is not what was packed|damaged"):
        verify(open_bundle(packed))
    with pytest.raises(Refused, match="damaged"):
        pack(packed, folder, packed)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"bundle/bundle.toml": b'name = "other"\n' + b"#" * 64}, r"\(79 bytes\) and should be"),
        ({"bundle/blobs/more": b""}, "more is not in its manifest"),
        ({"bundle/manifest.json": None}, "no manifest"),
        ({"bundle/bundle.toml": None}, "no bundle.toml"),
        ({"bundle/manifest.json": b"{"}, "manifest .* can't be read"),
        ({"bundle/manifest.json": b"[]"}, "manifest .* can't be read"),
        ({"bundle/manifest.json": b"{}"}, "bundle.toml is not in its manifest"),
        ({"bundle/manifest.json": b'{"bundle.toml": {"size": 1}}'}, "manifest .* can't be read"),
        ({"bundle/manifest.json": b'{"../x": {"size": 1, "sha256": ""}}'}, "which no bundle can hold"),
        ({"bundle/manifest.json": b'{"blobs/x": {"size": -1, "sha256": ""}}'}, "which no bundle can hold"),
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


def test_a_blob_may_be_called_as_distributions_call_their_packages(folder: Path, plain: Path) -> None:
    names = {"erlang_1%3a25.2.3+dfsg-1~deb12u1_amd64.deb", "app-1.0^git1-1.x86_64.rpm"}
    for name in names:
        (folder / "blobs" / name).write_text(name)
    pack(plain, folder, plain)
    bundle = open_bundle(plain)
    verify(bundle)
    assert names < bundle.blobs.keys()


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
