"""A docker of the tests' own: Debian's, its daemon started here with data, socket and bridge that no other one has."""

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
from tests.engines.podman import PATH

_OWN_NETWORKS = {"bridge", "host", "none"}


class Docker:
    """One daemon. `close` ends and removes all that is in it."""

    name = "docker"

    def __init__(self) -> None:
        # Its sockets' paths must stay below 108 bytes (unix(7)).
        self.folder = Path(tempfile.mkdtemp(prefix="mesh-docker-", dir="/var/lib"))
        self.environment: Mapping[str, str] = {
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_CONFIG": str(self.folder / "config"),
        }
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it answers. What an earlier one had is found again."""
        files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 16384)
        with (self.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [
                    "dockerd",
                    f"--data-root={self.folder}/data",
                    f"--exec-root={self.folder}/exec",
                    f"--host={self.environment['DOCKER_HOST']}",
                    f"--pidfile={self.folder}/pid",
                    f"--default-ulimit=nofile={files}:{files}",
                    "--exec-opt=native.cgroupdriver=cgroupfs",
                    "--log-level=warn",
                    "--shutdown-timeout=1",
                ],
                env={"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, 60, self._told)

    def stop(self) -> None:
        """End the daemon, which ends every container first."""
        if self._daemon:
            self._daemon.send_signal(signal.SIGTERM)
            self._daemon.wait(60)
            self._daemon = None

    def run(self, *arguments: str | Path, check: bool = True, seconds: float = 120) -> str:
        """Run `docker ARGUMENTS`; what it said on standard output, without the last newline."""
        done = self._call(arguments, seconds)
        assert not check or done.returncode == 0, f"docker {' '.join(map(str, arguments))}: {done.stderr}"
        return done.stdout.rstrip("\n")

    def import_image(self, archive: Path, name: str) -> str:
        """Make an image of one layer from a tar of a root file system; its id."""
        return self.run("import", archive, name).removeprefix("sha256:")

    def clear(self) -> None:
        """Remove every container, volume and network; images stay."""
        if containers := self.run("ps", "--all", "--quiet").split():
            self.run("rm", "--force", *containers)
        if volumes := self.run("volume", "ls", "--quiet").split():
            self.run("volume", "rm", "--force", *volumes)
        for network in set(self.run("network", "ls", "--format", "{{.Name}}").split()) - _OWN_NETWORKS:
            self.run("network", "rm", network)

    def close(self) -> None:
        if self._daemon:
            self.clear()
        self.stop()
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in sorted((point for point in points if point.startswith(f"{self.folder}{os.sep}")), reverse=True):
            subprocess.run(["umount", "--lazy", point], check=True)
        shutil.rmtree(self.folder)

    def _call(self, arguments: tuple[str | Path, ...], seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *arguments],
            env={"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def _answers(self) -> bool:
        assert self._daemon
        assert self._daemon.poll() is None, f"dockerd ended\n{self._told()}"
        return self._call(("version",), 30).returncode == 0

    def _told(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]
