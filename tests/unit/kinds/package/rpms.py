"""Packages of rpm's that are built here, and a root to install them into: Debian has rpm, dnf and zypper."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.host import commands
from agent.host.commands import Finished

BASE, APP = "mesh-agent-base", "mesh-agent-app"
BROKEN, FAILING, WAITING = "mesh-agent-broken", "mesh-agent-failing", "mesh-agent-waiting"
_SPEC = """\
Name: {name}
Version: {version}
Release: 1
Summary: a test
License: MIT
BuildArch: noarch
{more}
%description
A test.
{script}
%files
"""
# In rpm's own Lua, since there is no shell in the root.
_FAILS = '%pre -p <lua>\nerror("this one never installs")\n'
# Says that it has come so far, and goes on once it may.
_WAITS = """\
%pre -p <lua>
io.open("/reached", "w"):close()
while posix.access("/wait", "r") do posix.sleep(1) end
"""


@dataclass(frozen=True)
class Root:
    """A root without anything, a folder with packages, and a repository of the newest ones, if it is in reach."""

    folder: Path
    packages: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def database(self) -> Path:
        """Debian's rpm keeps what is installed at the user's home."""
        return self.root / "root/.rpmdb"

    def file(self, name: str, version: str) -> Path:
        return self.packages / f"{name}-{version}-1.noarch.rpm"

    def use(self, address: str) -> None:
        """Have this address as the only repository."""
        for folder in ("etc/yum.repos.d", "etc/zypp/repos.d"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            text = f"[test]\nname=test\nbaseurl={address}\ngpgcheck=0\nenabled=1\nautorefresh=1\n"
            (self.root / folder / "test.repo").write_text(text)

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        check: bool = True,
    ) -> Finished:
        repositories = f"--setopt=reposdir={self.root}/etc/yum.repos.d"
        options = {
            "rpm": ["--root", str(self.root)],
            "dnf": ["--installroot", str(self.root), "--releasever=1", repositories],
            "zypper": ["--root", str(self.root)],
        }[argv[0]]
        return commands.run([argv[0], *options, *argv[1:]], environment=environment, timeout=timeout, check=check)


def build(folder: Path) -> Path:
    """The folder with every package, and the list that makes it a repository."""
    specs = [
        *(_SPEC.format(name=BASE, version=version, more="", script="") for version in ("1.0", "1.5")),
        *(_SPEC.format(name=APP, version=version, more=f"Requires: {BASE}", script="") for version in ("1.0", "2.0")),
        _SPEC.format(name=BROKEN, version="1.0", more="Requires: no-such-thing", script=""),
        _SPEC.format(name=FAILING, version="1.0", more="", script=_FAILS),
        _SPEC.format(name=WAITING, version="1.0", more=f"Requires: {BASE}", script=_WAITS),
    ]
    paths = [folder / f"{number}.spec" for number in range(len(specs))]
    for path, text in zip(paths, specs, strict=True):
        path.write_text(text)
    subprocess.run(["rpmbuild", "--quiet", "-bb", "--define", f"_topdir {folder}", *paths], check=True)
    packages = folder / "RPMS/noarch"
    subprocess.run(["createrepo_c", "--quiet", packages], check=True)
    return packages
