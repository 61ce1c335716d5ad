"""Files of gigabytes: every Python starts them, and nothing of them is ever whole in memory."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from agent.bundle import Blob, add_member, open_bundle
from agent.bundle.manifest import encode
from tests import memory
from tests.built.starting import assert_runs, run
from tests.built.test_reach import pythons

# More than an offset of 32 bits reaches; and the digest of so many zeros.
SIZE = 2**32
ZEROS = "8479e43911dc45e89f934fe48d01297e16f51d17aa561d4d1c216b1ae0fcddca"
LAST = b"the last one"
DOCUMENT = b'name = "big"\n'


@pytest.fixture
def big(built_file: Path, place: Path) -> Path:
    """The built file with a blob of 4 GiB, which is a hole in the file, and one behind it."""
    path = place / "agent"
    blobs = {
        "a.bin": Blob("a.bin", SIZE, ZEROS),
        "z.txt": Blob("z.txt", len(LAST), hashlib.sha256(LAST).hexdigest()),
    }
    members = {"bundle/bundle.toml": DOCUMENT, "bundle/manifest.json": encode(DOCUMENT, blobs)}
    archive = io.BytesIO()
    with zipfile.ZipFile(built_file) as source, zipfile.ZipFile(archive, "w") as target:
        for member in source.infolist():
            content = members.get(member.filename) or source.read(member)
            add_member(target, member.filename, [content], len(content))
        begin = source.infolist()[0].header_offset
    with path.open("wb") as file:
        file.write(built_file.read_bytes()[:begin])
        file.seek(SIZE, os.SEEK_CUR)
        file.write(LAST + archive.getvalue())
    path.chmod(0o755)
    return path


def test_one_of_more_than_four_gigabytes_starts_on_every_python_and_is_verified(big: Path, place: Path) -> None:
    environment = {"AGENT_STATE": str(place / "state")}
    for python in pythons().values():
        assert ", bundle " in assert_runs(run([python, big, "--version"], environment, place))
    done, most = memory.run([big, "bundle", "verify"], {"PATH": os.environ["PATH"], **environment})
    assert "every byte is as its manifest says" in assert_runs(done)
    assert 0 < most < memory.BOUND
    assert b"".join(open_bundle(big).read_blob("z.txt")) == LAST


def test_packing_streams(built_file: Path, place: Path) -> None:
    author = place / "bundle"
    (author / "blobs").mkdir(parents=True)
    (author / "bundle.toml").write_bytes(DOCUMENT)
    with (author / "blobs/a.bin").open("wb") as file:
        file.truncate(4 * memory.BOUND)
    environment = {"PATH": os.environ["PATH"], "AGENT_STATE": str(place / "state")}
    done, most = memory.run([built_file, "bundle", "pack", author, "-o", place / "packed"], environment)
    assert "carries the bundle big" in assert_runs(done)
    assert 0 < most < memory.BOUND
    shutil.rmtree(author)
