"""The container engines of a machine, by their command lines: which one is used, and how it is asked.

- podman, unless the list names one or this state folder has used docker before: an engine that comes to a machine
  later moves nothing.
- No secret is in an engine's arguments, which every user sees; it goes through its command's environment.
- What an engine refuses is told in the line in which it says why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import Refused, Unavailable
from agent.fields import Fields, parse_json
from agent.host import commands, directories, files
from agent.host.commands import CommandFailed, Finished
from agent.kinds.kind import Machine
from agent.resources import EngineName, Resource, specs

# What a thing of ours bears at an engine: a container its whole mark, a volume or network the state folder.
LABEL = "mesh-agent"

_SECONDS = 120.0
_SAVE_SECONDS = 3600.0
# Where an engine's command is told to look; what the agent was started with holds for it too.
_PASSED_ON = (
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "CONTAINERS_REGISTRIES_CONF",
    "DOCKER_CONFIG",
    "DOCKER_HOST",
)
_ABSENT = re.compile(r"no such|not known|not found|unable to find", re.IGNORECASE)
_NO_DAEMON = re.compile(r"cannot connect to the docker daemon|is the docker daemon running", re.IGNORECASE)
_LINE_LENGTH = 300


class EngineFailed(Unavailable):
    """The engine didn't do it; `reason` is the line in which it says why."""

    def __init__(self, engine: EngineName, doing: str, reason: str) -> None:
        super().__init__(f"{engine.value} can't {doing}: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine that is here. `doing` is everywhere what is tried, to follow "can't"."""

    name: EngineName
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def run(
        self,
        arguments: Sequence[str],
        doing: str,
        *,
        secrets: Mapping[str, str] | None = None,
        seconds: float = _SECONDS,
        check: bool = True,
    ) -> Finished:
        """Ask it. `secrets` are in the command's environment only. EngineFailed when it refuses (with `check`)."""
        finished = self._call(arguments, doing, secrets or {}, seconds)
        if check and finished.code != 0:
            raise EngineFailed(self.name, doing, complaint(finished))
        return finished

    def feed(
        self,
        arguments: Sequence[str],
        chunks: Iterable[bytes],
        doing: str,
        *,
        seconds: float,
        tell: Callable[[str], None],
    ) -> Finished:
        """Ask it with something to read; `tell` gets each line it says on the way."""
        try:
            return commands.feed(
                [self.name.value, *arguments], chunks, environment=self.environment, timeout=seconds, tell=tell
            )
        except CommandFailed as error:
            if error.finished is None:
                raise EngineFailed(self.name, doing, error.reason) from error
            raise self._failure(error.finished, doing) from error

    def save(self, image: str) -> Iterator[bytes]:
        """Its archive of one image, in pieces; EngineFailed, after the last that came, when it broke off.

        The same image gives the same bytes (podman 4.3, docker 20.10).
        """
        form = ["--quiet", "--format", "docker-archive"] if self.name is EngineName.PODMAN else []
        doing = f"save the image {image}"
        try:
            yield from commands.read(
                [self.name.value, "save", *form, image], environment=self.environment, timeout=_SAVE_SECONDS
            )
        except CommandFailed as error:
            if error.finished is None:
                raise EngineFailed(self.name, doing, error.reason) from error
            raise self._failure(error.finished, doing) from error

    def store(self) -> Path:
        """The folder in which it keeps images."""
        form = "{{.Store.GraphRoot}}" if self.name is EngineName.PODMAN else "{{.DockerRootDir}}"
        answer = self.run(["info", "--format", form], "tell where it keeps images")
        return Path(answer.stdout.decode(errors="surrogateescape").strip())

    def loading_folder(self) -> Path:
        """The folder in which it lays down an archive that it is given, until that is loaded."""
        return Path("/var/tmp") if self.name is EngineName.PODMAN else self.store()  # noqa: S108

    def images(self) -> list[str]:
        """The names of all images that have one."""
        answer = self.run(["images", "--format", "{{.Repository}}:{{.Tag}}"], "list its images")
        return [name for name in answer.stdout.decode(errors="replace").split() if "<none>" not in name]

    def inspect(self, kind: str, name: str) -> Fields | None:
        """What it knows of one container, image, volume or network; None when it has none of that name."""
        doing = f"tell of the {kind} {name}"
        finished = self._call([kind, "inspect", name], doing, {}, _SECONDS)
        if finished.code == 0:
            return next(iter(self._objects(finished, doing)), None)
        reason = complaint(finished)
        if _ABSENT.search(reason):
            return None
        raise EngineFailed(self.name, doing, reason)

    def inspect_all(self, kind: str, names: Sequence[str]) -> list[Fields]:
        """As `inspect` for several, of which some may have gone meanwhile."""
        doing = f"tell of {kind}s"
        return self._objects(self._call([kind, "inspect", *names], doing, {}, _SECONDS), doing) if names else []

    def containers(self, filter: str) -> list[str]:
        """The ids of all containers, running or not, that fit: `volume=NAME`, `network=NAME`, `label=NAME`."""
        arguments = ["ps", "--all", "--quiet", "--no-trunc", "--filter", filter]
        return self.run(arguments, "list its containers").stdout.decode(errors="replace").split()

    def ask(self) -> None:
        """Unavailable when it doesn't answer."""
        self.run(["version"], "answer")

    def _call(self, arguments: Sequence[str], doing: str, secrets: Mapping[str, str], seconds: float) -> Finished:
        environment = {**self.environment, **secrets}
        finished = commands.run([self.name.value, *arguments], environment=environment, timeout=seconds, check=False)
        if finished.code != 0 and _NO_DAEMON.search(finished.stderr.decode(errors="replace")):
            raise self._failure(finished, doing)
        return finished

    def _failure(self, finished: Finished, doing: str) -> Unavailable:
        reason = complaint(finished)
        if _NO_DAEMON.search(reason):
            return Unavailable(
                f"docker is on this machine, but its daemon doesn't answer ({reason.rstrip('.')}); "
                "start it, as with `systemctl start docker`."
            )
        return EngineFailed(self.name, doing, reason)

    def _objects(self, finished: Finished, doing: str) -> list[Fields]:
        try:
            listed = parse_json(finished.stdout)
            return [Fields(one, self.name.value) for one in listed] if isinstance(listed, list) else []
        except Refused as error:
            raise EngineFailed(self.name, doing, f"its answer can't be read ({error})") from error


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of this machine. `environment` is passed on to them; `find` finds a program."""

    environment: Mapping[str, str] | None = field(default=None, repr=False)
    find: Callable[[str], str | None] = commands.find

    def here(self) -> tuple[Engine, ...]:
        """Those whose command is here, podman first."""
        environment = _passed_on() if self.environment is None else self.environment
        return tuple(Engine(name, environment) for name in EngineName if self.find(name.value))

    def choose(self, wanted: EngineName | None, machine: Machine) -> Engine:
        """The one that is used for what a list asks of `wanted`; Unavailable when it isn't here."""
        there = {engine.name: engine for engine in self.here()}
        if wanted:
            if wanted not in there:
                raise Unavailable(f"This machine has no {wanted.value}; install it, or leave out the engine.")
            return there[wanted]
        used = self._used(machine)
        if used in there:
            return there[used]
        if not there:
            raise Unavailable(
                "This machine has no container engine; install podman or docker, as with `apt-get install podman`."
            )
        return next(iter(there.values()))

    def remember(self, engine: Engine, machine: Machine) -> None:
        """From now on this is the one for whatever names none, as long as it is here."""
        place = _place(machine)
        if self._used(machine) in {one.name for one in self.here()}:
            return
        uid, gid = os.geteuid(), os.getegid()
        directories.make(place.parent, mode=0o700, uid=uid, gid=gid)
        files.write(place, engine.name.value.encode(), mode=0o600, uid=uid, gid=gid)

    def check(self, wanted: EngineName | None, machine: Machine, earlier: Sequence[Resource]) -> Engine | None:
        """The one that will be used, which answers; None when an earlier package may still bring it."""
        names = [wanted] if wanted else list(EngineName)
        if not any(self.find(name.value) for name in names) and any(
            isinstance(one.spec, specs.Package) for one in earlier
        ):
            return None
        engine = self.choose(wanted, machine)
        engine.ask()
        return engine

    def _used(self, machine: Machine) -> EngineName | None:
        content = files.read(_place(machine), uid=os.geteuid())
        return next((name for name in EngineName if content == name.value.encode()), None)


def complaint(finished: Finished) -> str:
    """The line that says why: the first that an engine calls an error, else the last that it said."""
    last = "it said nothing"
    for output in (finished.stdout, finished.stderr):
        for text in output.decode(errors="replace").splitlines():
            line = "".join(filter(str.isprintable, text)).strip()[:_LINE_LENGTH]
            if line.startswith("Error"):
                return line.removeprefix("Error response from daemon: ").removeprefix("Error: ")
            last = line or last
    return last


def _passed_on() -> dict[str, str]:
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    host = environment.get("DOCKER_HOST", "unix://")
    if not host.startswith("unix://"):
        raise Refused(f"DOCKER_HOST is {host}, which is another machine's docker; unset it: an agent's is its own.")
    return environment


def _place(machine: Machine) -> Path:
    return machine.state / "run" / "engine"
