"""A podman of the tests' own: Debian's, with images, containers, volumes and networks that no other podman sees.

All of it hangs on the variables in `environment`, which every call needs, the product's included.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.broker.rabbit import wait_until

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Podman:
    """One store. `close` ends and removes all that is in it."""

    name = "podman"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mesh-agent-podman-", dir="/var/lib"))
        for name, text in _configuration(self.folder).items():
            (self.folder / name).write_text(text)
        self.environment: Mapping[str, str] = {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
        }

    def run(self, *arguments: str | Path, check: bool = True, seconds: float = 120) -> str:
        """Run `podman ARGUMENTS`; what it said on standard output, without the last newline."""
        done = subprocess.run(
            ["podman", *arguments],
            env={"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert not check or done.returncode == 0, f"podman {' '.join(map(str, arguments))}: {done.stderr}"
        return done.stdout.rstrip("\n")

    def import_image(self, archive: Path, name: str) -> str:
        """Make an image of one layer from a tar of a root file system; its id."""
        return self.run("import", "--quiet", archive, name).removeprefix("sha256:")

    def trust(self, registry: str) -> None:
        """Have this registry asked without TLS, as docker asks every one on loopback."""
        with (self.folder / "registries.conf").open("a") as file:
            file.write(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')

    def lose_power(self) -> None:
        """Leave it as a reboot does: nothing runs, and nothing that lies in memory is there any more."""
        form = "{{.State.ConmonPid}} {{.State.Pid}}"
        ids = self.run("ps", "--quiet").split()
        pids = [int(pid) for id in ids for pid in self.run("container", "inspect", "--format", form, id).split()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), 10)
        _unmount_below(self.folder)
        for name in ("run", "tmp"):
            shutil.rmtree(self.folder / name)

    def clear(self) -> None:
        """Remove every container, volume and network; images stay."""
        self.run("rm", "--all", "--force", "--time", "0")
        self.run("volume", "rm", "--all", "--force")
        for network in self.run("network", "ls", "--format", "{{.Name}}").split():
            if network != "podman":
                self.run("network", "rm", "--force", network)

    def close(self) -> None:
        self.clear()
        _unmount_below(self.folder)
        shutil.rmtree(self.folder)


def _configuration(folder: Path) -> Mapping[str, str]:
    # podman's own default is more than this machine may set: no CAP_SYS_RESOURCE.
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 16384)
    processes = min(resource.getrlimit(resource.RLIMIT_NPROC)[1], 16384)
    return {
        "containers.conf": f"""\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
# Locks in shared memory are the machine's: a fresh store would free those of every other one.
lock_type = "file"
runtime = "runc"
tmp_dir = "{folder}/tmp"
[network]
network_config_dir = "{folder}/networks"
""",
        "storage.conf": f"""\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
""",
        "registries.conf": "unqualified-search-registries = []\n",
    }


def _unmount_below(folder: Path) -> None:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((point for point in points if point.startswith(f"{folder}{os.sep}")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=True)
