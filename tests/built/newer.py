"""The built file as a later build would be: another version, other code, and a ledger of a later schema."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

from agent import __version__, bundle
from agent.build import BUILD_MEMBER

VERSION = "99.0.0"
_CODE = "site-packages/agent/"
# What is another text in it, and by what.
_CHANGED = {
    f"{_CODE}__init__.py": (f'"{__version__}"', f'"{VERSION}"'),
    f"{_CODE}node/ledger.py": ("_MIGRATIONS = (_SCHEMA,)", '_MIGRATIONS = (_SCHEMA, "CREATE TABLE later (x)")'),
}


def make_newer(file: Path, carrying: Path, folder: Path) -> Path:
    """A newer file than `file`, which carries the bundle in the folder `carrying`."""
    plain, output = folder / "plain", folder / "agent"
    with zipfile.ZipFile(file) as source, plain.open("wb") as target:
        first = min(member.header_offset for member in source.infolist())
        target.write(file.read_bytes()[:first])
        with zipfile.ZipFile(target, "w") as archive:
            for member in source.infolist():
                content = source.read(member)
                if member.filename in _CHANGED:
                    before, after = _CHANGED[member.filename]
                    assert before in content.decode()
                    content = content.decode().replace(before, after).encode()
                if member.filename == BUILD_MEMBER:
                    digest = hashlib.sha256(repr(_CHANGED).encode() + content).hexdigest()
                    record = {**json.loads(content), "version": VERSION, "id": digest[:20], "commit": digest[20:60]}
                    content = json.dumps(record).encode()
                bundle.add_member(archive, member.filename, [content], len(content), member.compress_type)
    bundle.pack(plain, carrying, output)
    return output
