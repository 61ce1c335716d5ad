"""Root file systems for images, as tars: there is no registry to pull from.

`busybox` makes one of a single program in no time. `debian` makes one with debootstrap, which takes a minute the first
time; it is kept in /var/cache by the hash of its recipe.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

BUSYBOX = Path("/usr/bin/busybox")
CACHE = Path("/var/cache/mesh-agent-tests")
SUITE = "bookworm"


def busybox(folder: Path) -> Path:
    """A tar in `folder`: Debian's busybox-static as every program it can be, and the users root and nobody."""
    path = folder / "busybox.tar"
    names = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    with tarfile.open(path, "w") as archive:
        for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "var", "var/data"):
            _add(archive, name, tarfile.DIRTYPE, mode=0o1777 if name == "tmp" else 0o755)
        _add(archive, "bin/busybox", tarfile.REGTYPE, BUSYBOX.read_bytes(), mode=0o755)
        for name in names:
            if name != "busybox":
                _add(archive, f"bin/{name}", tarfile.SYMTYPE, target="busybox")
        _add(archive, "etc/passwd", tarfile.REGTYPE, b"root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        _add(archive, "etc/group", tarfile.REGTYPE, b"root:x:0:\nnogroup:x:65534:\n")
    return path


def debian(packages: Sequence[str], script: str = "") -> Path:
    """A tar in the cache: Debian's smallest variant with these packages; `script` is run by its sh as the last step.

    No daemon of a package starts meanwhile. Machines of one suite share it: two at once wait for each other.
    """
    recipe = {"suite": SUITE, "packages": sorted(packages), "script": script, "version": 1}
    path = CACHE / f"{hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:32]}.tar"
    CACHE.mkdir(mode=0o755, exist_ok=True)
    with (CACHE / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _bootstrap(path, packages, script)
    return path


def _bootstrap(path: Path, packages: Sequence[str], script: str) -> None:
    root = Path(tempfile.mkdtemp(prefix="root-", dir=CACHE))
    part = path.with_suffix(".part")
    try:
        arguments = ["--variant=minbase", *([f"--include={','.join(packages)}"] if packages else [])]
        _run(["debootstrap", *arguments, SUITE, str(root)])
        if script:
            _run(["chroot", str(root), "/bin/sh", "-euc", script])
        for leftover in [*root.glob("var/cache/apt/archives/*.deb"), *root.glob("var/log/*.log")]:
            leftover.unlink()
        _run(["tar", "-C", str(root), "--numeric-owner", "-cf", str(part), "."])
        part.rename(path)
    finally:
        shutil.rmtree(root)
        part.unlink(missing_ok=True)


def _run(argv: list[str]) -> None:
    environment = {"PATH": os.defpath + ":/usr/sbin:/sbin", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    # What the machine needs to get through to its package archive.
    environment.update({name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")})
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{argv[0]}: {(done.stdout + done.stderr)[-4000:]}"


def _add(
    archive: tarfile.TarFile, name: str, kind: bytes, content: bytes = b"", *, mode: int = 0o644, target: str = ""
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size, member.linkname = kind, mode, len(content), target
    archive.addfile(member, io.BytesIO(content))
