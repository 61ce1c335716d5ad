"""Machines for the built file: each a state folder with ports and paths of its own, all of them on this one.

Whatever a machine starts carries its state folder in its environment or is a child of the test, so that all of it can
be found and ended by pid, and all of its files lie in one folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.broker.rabbit import free_ports, wait_until

__all__ = ["Agent", "Machine", "free_ports", "is_alive", "look_of", "wait_until"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# How long to wait for what takes a second on an idle machine, and for a broker's start.
SHORT, LONG = 30.0, 120.0


class Agent:
    """A running `agent up`; `output` is what it has said so far, on both streams."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path, log: Path, stdin: str) -> None:
        self._log = log
        with log.open("wb") as output, tempfile.TemporaryFile() as source:
            source.write(stdin.encode())
            source.seek(0)
            self.process = subprocess.Popen(
                command, env=dict(environment), cwd=folder, stdin=source, stdout=output, stderr=output
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    def wait_for(self, part: str, seconds: float = LONG) -> None:
        """Until it has said this; fail when it ends before."""

        def said() -> bool:
            ended = self.process.poll() is not None
            if part in self.output:
                return True
            assert not ended, f"it ended ({self.process.returncode}) without saying {part!r}:\n{self.output}"
            return False

        wait_until(said, seconds, lambda: f"{part!r} was not said:\n{self.output}")

    def end(self, seconds: float = SHORT) -> int:
        """Ask it to end; its exit code."""
        self.process.terminate()
        return self.process.wait(seconds)

    def kill(self) -> None:
        """End it as a loss of power would."""
        self.process.kill()
        self.process.wait()


class Machine:
    """One machine: a name, a folder for everything, and the file that is run there.

    `unpacked` is what the file unpacks into its state folder, to spare it the time.
    """

    def __init__(self, file: Path, name: str, unpacked: Path) -> None:
        # Below /var/lib, because the broker's account must get through every folder above.
        self.folder = Path(tempfile.mkdtemp(prefix=f"mesh-agent-{name}-", dir="/var/lib"))
        self.folder.chmod(0o755)
        self.file, self.name = file, name
        self.state = self.folder / "state"
        self.state.mkdir(0o711)
        shutil.copytree(unpacked, self.state / "runtime")
        ports = free_ports(4)
        names = ("broker_port", "management_port", "epmd_port", "distribution_port")
        self.ports = dict(zip(names, ports, strict=True))
        self.params: dict[str, str] = {
            **{name: str(port) for name, port in self.ports.items()},
            **{name: str(self.folder / name) for name in ("config", "data", "log")},
        }
        self.variables: dict[str, str] = {}
        """What every command gets in its environment beside PATH and AGENT_STATE."""
        self._agents: list[Agent] = []

    @property
    def settings(self) -> list[str]:
        """The options that give this machine's mesh its own ports and folders."""
        return [word for name, value in self.params.items() for word in ("--set", f"{name}={value}")]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {"PATH": PATH, "AGENT_STATE": str(self.state), **self.variables, **(more or {})}

    def run(
        self,
        *arguments: str | Path,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
        before: tuple[str, ...] = (),
        cwd: Path | None = None,
        user: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the agent to its end; `before` are words to put before it, of a program that runs it."""
        return subprocess.run(
            [*before, str(self.file), *map(str, arguments)],
            env=self.environment(environment),
            cwd=cwd or self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LONG,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )

    def ask(self, *arguments: str | Path, stdin: str = "") -> str:
        """What a command that works prints."""
        done = self.run(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), (arguments, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ask(*arguments, "-o", "json"))

    def start(self, *arguments: str | Path, stdin: str = "") -> Agent:
        """Start a command that goes on."""
        log = self.folder / f"said.{len(self._agents)}"
        agent = Agent([str(self.file), *map(str, arguments)], self.environment(), self.folder, log, stdin)
        self._agents.append(agent)
        return agent

    def up(self, *arguments: str | Path, stdin: str = "") -> Agent:
        """Start `agent up`."""
        return self.start("up", *arguments, stdin=stdin)

    def found(self, *arguments: str) -> Agent:
        """Found a mesh and wait until it is up."""
        agent = self.up("--name", self.name, *self.settings, *arguments)
        agent.wait_for("waiting for declarations")
        return agent

    def back(self) -> Agent:
        """`up` again, and wait until the link is."""
        agent = self.up()
        agent.wait_for("waiting for declarations")
        return agent

    def declare(self, node: str, resources: list[dict[str, Any]], *options: str) -> subprocess.CompletedProcess[str]:
        """`control declare` of a list, by standard input."""
        return self.run("control", "declare", node, "-", *options, stdin=json.dumps(resources))

    def status(self) -> dict[str, dict[str, Any]]:
        """What `agent status` says of each resource, by id."""
        return {line["id"]: line for line in self.json("status")["resources"]}

    def processes(self, service: str | None = None) -> set[int]:
        """The pids of this state's services, or of one: by their mark and by their control group."""
        value = f"AGENT_SERVICE={self.state}:{service or ''}".encode()
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                words = _environment(entry)
                if any(word == value if service else word.startswith(value) for word in words):
                    found.add(int(entry.name))
        for group in self.control_groups(service):
            found.update(int(line) for line in (group / "cgroup.procs").read_text().split())
        return found

    def main_process(self, service: str) -> int:
        """The pid that is recorded for a service."""
        return int(json.loads((self.state / "run" / "services" / f"{service}.json").read_text())["pid"])

    def control_groups(self, service: str | None = None) -> list[Path]:
        digest = hashlib.sha256(os.fsencode(self.state)).hexdigest()[:16]
        return [
            path
            for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
            for path in root.glob(f"mesh-agent-{digest}-{service or '*'}")
        ]

    def kill(self, service: str | None = None) -> None:
        """End a service, or all of them, as a loss of power would."""

        def gone() -> bool:
            living = self.processes(service)
            for pid in living:
                _kill(pid)
            return not living

        wait_until(gone, SHORT)

    def lose_power(self) -> None:
        """End everything that this machine runs, at once; what is on its disk stays."""
        for agent in self._agents:
            if agent.process.poll() is None:
                agent.kill()
        self.kill()

    def remove(self) -> None:
        """Leave nothing of it."""
        self.lose_power()
        for group in self.control_groups():
            wait_until(lambda group=group: _remove_group(group), SHORT)
        shutil.rmtree(self.folder)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about yet doesn't."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def look_of(*paths: Path) -> dict[str, tuple[Any, ...]]:
    """All that is at or below these paths: type, mode, owner, times of writing and content, to compare."""
    return {str(path): _look(path) for top in paths for path in (top, *sorted(_below(top)))}


def _below(top: Path) -> Iterator[Path]:
    if top.is_dir() and not top.is_symlink():
        yield from top.rglob("*")


def _look(path: Path) -> tuple[Any, ...]:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ()
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
    written = 0 if path.is_dir() else status.st_mtime_ns
    return (oct(status.st_mode), status.st_uid, status.st_gid, written, content)


def _remove_group(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # the kernel needs a moment after its last process
        return False
    return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has just ended
        return []
