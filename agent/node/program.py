"""Which agent file is which, told without reading all of it: what its build wrote down, and the bundle it carries."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent import __version__
from agent.build import BUILD_MEMBER, recorded
from agent.bundle import Bundle
from agent.errors import Refused
from agent.fields import Fields, canonical, parse_json

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Program:
    """One file's code (`build` is the digest of all of it, "" in a source tree) and bundle (name and digest)."""

    version: str
    commit: str
    build: str
    bundle: str
    digest: str

    @property
    def stamp(self) -> str:
        """What makes it another program: other code, or another bundle."""
        return f"{self.build} {self.digest}"

    def encode(self) -> str:
        """As text in one line."""
        return canonical(
            {
                "version": self.version,
                "commit": self.commit,
                "id": self.build,
                "bundle": {"name": self.bundle, "digest": self.digest},
            }
        )


_SOURCE_TREE = Program(__version__, "", "", "", "")


def of_this_process(bundle: Bundle) -> Program:
    """The running file's code with this bundle, which may be another than its own."""
    built = decode(recorded()) or _SOURCE_TREE
    return replace(built, bundle=bundle.name, digest=bundle.digest)


def of_file(path: Path) -> Program | None:
    """What an agent file is; None when nothing is there, or no whole agent file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return decode(archive.read(BUILD_MEMBER))
    except (OSError, KeyError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        return None


def decode(text: bytes) -> Program | None:
    """What `encode` or a build has written; None when it is something else."""
    try:
        fields = Fields(parse_json(text))
        bundle = fields.table("bundle")
        return Program(
            version=fields.text("version"),
            commit=fields.text("commit"),
            build=fields.text("id"),
            bundle=bundle.text("name") if bundle else "",
            digest=bundle.text("digest") if bundle else "",
        )
    except Refused:
        return None


def changes(old: Program, new: Program) -> str:
    """What of a program is another one's, for a person: `version 1.0.0 → 1.1.0, build 0a… → 1b…`."""
    parts: Mapping[str, tuple[str, str]] = {
        "version": (old.version, new.version),
        "commit": (_short(old.commit), _short(new.commit)),
        "build": (_short(old.build), _short(new.build)),
        "bundle": (f"{old.bundle} {_short(old.digest)}", f"{new.bundle} {_short(new.digest)}"),
    }
    return ", ".join(f"{name} {one} → {other}" for name, (one, other) in parts.items() if one != other)


def _short(digest: str) -> str:
    # `-dirty` at the end of a commit says that there is more than the commit.
    return f"{digest[:_SHOWN]}{'-dirty' if digest.endswith('-dirty') else ''}" if digest else "unknown"
