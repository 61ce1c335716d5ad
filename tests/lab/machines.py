"""Machines as containers: each a Debian 12 with systemd as its first process and an address of its own.

They are fresh: Python and podman are on them, and an apt source with what the native bundle needs, on their own disk.
So they need no network but that between them. Everything of them ends with `close`.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from tests.broker.rabbit import wait_until
from tests.engines import images
from tests.engines.podman import PATH, Podman

# How long to wait for what takes a second on an idle machine, and for a broker's installation and start.
SHORT, LONG = 60.0, 300.0
STATE = Path("/var/lib/mesh-agent")
UNITS = Path("/etc/systemd/system")

_PACKAGES = ("apt-utils", "dbus", "iproute2", "procps", "python3", "systemd-sysv")
# Packages of the machine's own apt source: the native bundle's, and daemons that are seen to start or not to.
_SHELF = ("at", "cron", "openssl", "rabbitmq-server")
# What podman would set by itself is more than a machine inside another one may.
_LIMITS = 16384
_SCRIPT = f"""
mkdir -p /srv/packages
apt-get -q update
apt-get -qy install --no-install-recommends podman runc
cat >/etc/containers/containers.conf <<'END'
[containers]
default_ulimits = ["nofile={_LIMITS}:{_LIMITS}", "nproc={_LIMITS}:{_LIMITS}"]
[engine]
runtime = "runc"
END
apt-get -qy install --no-install-recommends --download-only -o Dir::Cache::archives=/srv/packages {" ".join(_SHELF)}
rm -rf /srv/packages/partial /srv/packages/lock
cd /srv/packages
apt-ftparchive packages . >Packages
echo 'deb [trusted=yes] file:/srv/packages ./' >/etc/apt/sources.list
apt-get -q clean
rm -rf /var/lib/apt/lists/* /etc/machine-id /usr/sbin/policy-rc.d
touch /etc/machine-id
"""
# For systemd's sake podman covers the machine's own control groups with those of the host, which all would share.
_INIT = "umount /sys/fs/cgroup/systemd/release_agent /sys/fs/cgroup/systemd; exec /sbin/init"


class Lab:
    """A network with machines in it, once it is prepared. `close` ends and removes all of it."""

    def __init__(self) -> None:
        self._podman = Podman()
        self._image = ""
        # Which addresses of a network are taken is remembered for the whole host, by its name.
        self._network = f"lab-{self._podman.folder.name.rpartition('-')[2]}"
        self._addresses: Iterator[IPv4Address] = iter(())

    def prepare(self) -> None:
        """Make the machines' image, which takes two minutes when it is not in the cache, and the network."""
        self._image = self._podman.import_image(images.debian(_PACKAGES, _SCRIPT), "machine")
        # podman's own choice may be what another podman has chosen for a network that nothing is in yet.
        subnet = f"10.90.{random.randrange(256)}.0/24"
        self._podman.run("network", "create", "--subnet", subnet, self._network)
        self._podman.run("run", "--rm", "--network", self._network, self._image, "true")
        network = json.loads(self._podman.run("network", "inspect", self._network))[0]["subnets"][0]
        self._addresses = (one for one in IPv4Network(network["subnet"]).hosts() if str(one) != network["gateway"])

    def machine(self, name: str, file: Path | None = None, *, alone: bool = False) -> Machine:
        """A fresh machine that is up, with an address that it keeps; `file` is put there as /root/agent.

        One that is `alone` has no network.
        """
        options = ("--systemd=always", "--privileged", "--hostname", name, "--name", name)
        network = ("none",) if alone else (self._network, "--ip", str(next(self._addresses)))
        options = (*options, "--network", *network)
        # What podman needs in there: paths of control groups as it sees them, and no overlay below its own.
        options = (*options, "--cgroupns", "private", "--volume", "/var/lib/containers")
        self._podman.run("run", "--detach", *options, self._image, "/bin/sh", "-euc", _INIT)
        made = Machine(self._podman, name)
        made.wait_for_boot()
        if file:
            made.put(file, Path("/root/agent"))
        return made

    def close(self) -> None:
        self._podman.close()
        shutil.rmtree(Path("/var/lib/cni/networks", self._network), ignore_errors=True)


class Machine:
    """One machine, by its container's name."""

    def __init__(self, podman: Podman, name: str) -> None:
        self._podman = podman
        self.name = name
        self._carried = ""

    @property
    def address(self) -> str:
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return self._podman.run("inspect", "--format", form, self.name)

    def run(self, *words: str | Path, stdin: str = "", seconds: float = LONG) -> subprocess.CompletedProcess[str]:
        """Run a program there to its end, as root with the environment of a login."""
        # `env` keeps podman's own variable (container=podman) from making programs think that they are in one.
        clean = ("env", "-i", f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8")
        return subprocess.run(
            ["podman", "exec", "--interactive", self.name, *clean, *map(str, words)],
            env={"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **self._podman.environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def ask(self, *words: str | Path, stdin: str = "") -> str:
        """What a program prints that works, without the last newline."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.rstrip("\n")

    def sh(self, script: str) -> str:
        """What a shell's script prints, in which nothing may fail."""
        return self.ask("/bin/sh", "-euc", script)

    def agent(self, *words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run the agent that was put there."""
        return self.run("/root/agent", *words, stdin=stdin)

    def status(self) -> Mapping[str, Any]:
        return dict(json.loads(self.ask("/root/agent", "status", "-o", "json")))

    def states(self) -> Mapping[str, str]:
        """What `agent status` says of each resource, by id."""
        return {line["id"]: line["state"] for line in self.status()["resources"]}

    def up(self, bundle: str = "", *options: str) -> subprocess.CompletedProcess[str]:
        """`agent up --once`, of the file's own bundle or of one with this text."""
        settled = STATE / "agent"
        if bundle and bundle == self._carried and self.exists(settled):
            # As a reboot does; packing takes longer than all the rest.
            return self.run(settled, "up", "--once", *options)
        if bundle:
            self.sh("mkdir -p /root/bundle/blobs")
            self.write(Path("/root/bundle/bundle.toml"), bundle)
            options = (*options, "--bundle", "/root/bundle")
        done = self.agent("up", "--once", *options)
        if done.returncode != 1:
            self._carried = bundle
        return done

    def raise_(self, bundle: str = "", *options: str) -> dict[str, tuple[str, str]]:
        """`up`, which works; what was done with each resource, by id, and why where that is said."""
        done = self.up(bundle, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        steps = [re.match(r" *\d+/\d+ +(\S+)  (\S+)  [\d.]+ s(?:  (.*))?$", line) for line in done.stdout.splitlines()]
        return {step[1]: (step[2], step[3] or "") for step in steps if step}

    def put(self, file: Path, place: Path) -> None:
        self._podman.run("cp", file, f"{self.name}:{place}")

    def fetch(self, place: Path, folder: Path) -> None:
        """Copy what lies in a folder there into this one."""
        self._podman.run("cp", f"{self.name}:{place}/.", folder)

    def write(self, place: Path, text: str) -> None:
        self.ask("/bin/sh", "-c", f"cat >{shlex.quote(str(place))}", stdin=text)

    def read(self, place: Path) -> str:
        """What is in a file, all of it; "" when there is none."""
        return self.run("cat", place).stdout

    def exists(self, place: Path) -> bool:
        return self.run("test", "-e", place, "-o", "-L", place).returncode == 0

    def unit(self, name: str, *properties: str) -> list[str]:
        """Properties of a unit, as systemd says them."""
        text = self.ask("systemctl", "show", *(f"--property={one}" for one in properties), name)
        values = dict(line.partition("=")[::2] for line in text.splitlines())
        return [values[one] for one in properties]

    def main(self, unit: str) -> int:
        """The pid of a unit's main process; 0 when it has none."""
        return int(self.unit(unit, "MainPID")[0])

    def processes(self, unit: str) -> frozenset[int]:
        """Every process that a unit has."""
        group = self.unit(unit, "ControlGroup")[0]
        if not group:
            return frozenset()
        return frozenset(map(int, self.ask("cat", f"/sys/fs/cgroup/systemd{group}/cgroup.procs").split()))

    def journal(self, unit: str) -> str:
        return self.ask("journalctl", "--quiet", "--no-pager", "--output=cat", f"--unit={unit}")

    def wait(self, condition: Callable[[], object], seconds: float = SHORT) -> None:
        wait_until(condition, seconds, lambda: self.sh("systemctl --failed --no-pager; journalctl --no-pager -n 50"))

    def wait_for_boot(self) -> None:
        def is_up() -> bool:
            done = self.run("systemctl", "is-system-running")
            return done.stdout.strip() in ("running", "degraded")

        wait_until(is_up, SHORT)

    def reboot(self) -> None:
        """Shut it down in order, and have it up again."""
        self._podman.run("restart", "--time", "120", self.name, seconds=LONG)
        self.wait_for_boot()

    def remove(self) -> None:
        self._podman.run("rm", "--force", "--time", "0", self.name)
