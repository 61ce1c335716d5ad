"""Other systems for the built file to start on, each in a folder: Debian as it is without and with Python, and packages
of another machine or a later release, only laid out.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.engines import images

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# Beside a Debian without Python, what makes it one with an incomplete, and with the whole of Python.
_PACKAGES = """
apt-get -q update
for name in python3-minimal python3; do
  mkdir -p /srv/$name/partial
  apt-get -qy install --no-install-recommends --download-only -o Dir::Cache::archives=/srv/$name $name
  rm -rf /srv/$name/partial /srv/$name/lock
done
apt-get -q clean
rm -rf /var/lib/apt/lists/*
"""


class Root:
    """A system in the folder `path`; programs run in it by chroot, with nothing in their environment but a PATH."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["chroot", self.path, *words],
            env={"PATH": PATH, **environment},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def ask(self, *words: str | Path, **environment: str) -> str:
        """What a program prints that works."""
        done = self.run(*words, **environment)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def put(self, file: Path) -> None:
        """Have `file` there as /root/agent, executable."""
        place = self.path / "root/agent"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
        place.chmod(0o755)


def debian(path: Path, package: str | None = None) -> Root:
    """The smallest Debian in `path`, with `python3-minimal`, `python3` or no Python."""
    path.mkdir()
    _run(["tar", "-C", path, "-xpf", images.debian((), _PACKAGES)])
    root = Root(path)
    if package:
        files = [f"/srv/{package}/{file.name}" for file in sorted((path / "srv" / package).iterdir())]
        options = ("-qy", "--no-install-recommends", "-o", "Dpkg::Options::=--force-unsafe-io")
        root.ask("apt-get", *options, "install", *files, DEBIAN_FRONTEND="noninteractive")
    return root


def laid_out(path: Path, packages: Sequence[str], *, architecture: str, suite: str) -> Root:
    """What Debian's packages and all that they need hold, laid out in `path`; nothing of it is configured.

    They come from where this machine's apt gets its own.
    """
    path.mkdir()
    apt = path.with_name(path.name + ".apt")
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_archive()} {suite} main\n")
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Dir::Cache::archives": apt / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": "/dev/null",
    }
    words = ["apt-get", "-q", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    _run([*words, "update"])
    _run([*words, "-y", "--no-install-recommends", "--download-only", "install", *packages])
    for file in sorted((apt / "archives").glob("*.deb")):
        _run(["dpkg-deb", "--extract", file, path])
    for name in ("lib", "lib64"):
        if not (path / name).exists():  # where a release has them in /usr, they are links that no package holds
            (path / name).symlink_to(f"usr/{name}")
    return Root(path)


def release() -> str:
    """This machine's Debian release by name."""
    lines = Path("/etc/os-release").read_text().splitlines()
    return next(line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME="))


def _archive() -> str:
    """Where this machine's apt gets Debian from."""
    targets = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)", "Created-By: Packages"])
    for line in targets.splitlines():
        place, component = line.rsplit(" ", 1)
        if component == "main" and place.rstrip("/").endswith("/debian"):
            return place
    raise AssertionError(f"no apt source of this machine is Debian's archive: {targets}")


def _run(command: list[str | Path]) -> str:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, (command, (done.stdout + done.stderr)[-4000:])
    return done.stdout
