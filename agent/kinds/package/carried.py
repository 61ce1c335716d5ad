"""The package files that a bundle carries: which of them are for this machine, and where they lie meanwhile.

- A file is told by its name: `.deb`, `.rpm` or `.apk`, and before that, as distributions name them, its architecture.
- They are copied into a private folder for one installation. It is gone afterwards; what a killed agent has left of it
  is cleared by the next try.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.host import directories, files
from agent.kinds.kind import Machine
from agent.resources import FromBlob

# What Debian, rpm and Alpine call architectures; `src` fits nobody.
_ARCHITECTURES = frozenset(
    {"all", "amd64", "arm64", "armel", "armhf", "i386", "loong64", "mips64el", "mipsel", "ppc64el", "riscv64", "s390x"}
    | {"noarch", "src", "x86_64", "aarch64", "armv7hl", "i686", "loongarch64", "ppc64le", "x86", "armv7"}
)
_LAST_WORD = re.compile(r"[._]([a-z0-9]+(?:_64)?)$")


def fitting(carried: Sequence[FromBlob], suffix: str, architectures: Collection[str]) -> tuple[FromBlob, ...]:
    """Those that the package manager of this `suffix` takes here; one that names no architecture is for any."""
    return tuple(
        one
        for one in carried
        if one.name.endswith(suffix) and architecture(one.name.removesuffix(suffix)) in {None, *architectures}
    )


def architecture(stem: str) -> str | None:
    """The architecture that ends a file's name: NAME_VERSION_amd64, NAME-VERSION.x86_64; None where none does."""
    match = _LAST_WORD.search(stem)
    return match[1] if match and match[1] in _ARCHITECTURES else None


def digests(carried: Sequence[FromBlob]) -> tuple[str, ...]:
    """What tells these files from others, in whatever order."""
    return tuple(sorted(one.sha256 for one in carried))


def has_leftovers(machine: Machine) -> bool:
    """Whether an installation that was cut short has left package files."""
    return os.path.lexists(_folder(machine))


def clear(machine: Machine) -> None:
    """Take away what such an installation has left."""
    directories.remove_tree(_folder(machine), uid=os.geteuid())


@contextmanager
def unpacked(carried: Sequence[FromBlob], suffix: str, machine: Machine) -> Iterator[tuple[Path, Sequence[Path]]]:
    """The private folder and the files in it, each written whole and compared with the bundle's digest."""
    folder, uid, gid = _folder(machine), os.geteuid(), os.getegid()
    clear(machine)
    for path in (folder.parent, folder):
        directories.make(path, mode=0o700, uid=uid, gid=gid)
    try:
        paths = []
        for number, one in enumerate(carried):
            # By numbers: signs that mean something to a package manager (%, ~) may stand in their names.
            path = folder / f"{number}{suffix}"
            files.write(path, machine.read_blob(one.name), mode=0o600, uid=uid, gid=gid)
            paths.append(path)
        yield folder, paths
    finally:
        clear(machine)


def _folder(machine: Machine) -> Path:
    return machine.state / "run" / "package-files"
