"""What an engine's `container inspect` says of a container, as far as it matters here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

from agent.fields import Fields
from agent.host.endpoints import Endpoint, Protocol

# What both engines give as the time of a start that never was.
_NEVER = "0001-01-01T00:00:00Z"
_ANONYMOUS = re.compile(r"[0-9a-f]{64}")
_STOP_SECONDS = 10


class Phase(Enum):
    """HALF_MADE was never started. ODD is anything that neither runs nor can simply be started: paused, dead."""

    HALF_MADE = "half made"
    RUNNING = "running"
    STOPPED = "stopped"
    ODD = "odd"


@dataclass(frozen=True, slots=True)
class State:
    """One container. `status` is the engine's own word, `pid` its first process, 0 when it has none.

    `started` is the time of its last start, "" before the first. `image` is an id. `anonymous` are the volumes that
    nobody named, by where they are mounted. `published` are the host's endpoints. `stop_timeout` is in seconds.
    """

    id: str
    name: str
    status: str
    pid: int
    started: str
    image: str
    labels: Mapping[str, str]
    anonymous: Mapping[str, str]
    published: tuple[Endpoint, ...]
    stop_timeout: int

    @property
    def phase(self) -> Phase:
        """How far it is. A reboot leaves podman's as `created`, but with the time of their start."""
        if self.status == "running":
            return Phase.RUNNING
        if self.status == "created" and not self.started:
            return Phase.HALF_MADE
        return Phase.STOPPED if self.status in ("created", "exited", "stopped") else Phase.ODD

    @property
    def run(self) -> str:
        """This very start of this very container."""
        return f"{self.id}@{self.started}"


def read(fields: Fields) -> State:
    """One object of the engine's answer; Refused when it lacks what every engine gives."""
    state, config, host = _inner(fields, "State"), _inner(fields, "Config"), _inner(fields, "HostConfig")
    started = state.text("StartedAt", "")
    return State(
        id=fields.text("Id"),
        name=fields.text("Name").removeprefix("/"),
        status=state.text("Status"),
        pid=state.integer("Pid", 0),
        started="" if started == _NEVER else started,
        image=fields.text("Image").removeprefix("sha256:"),
        labels=config.text_table("Labels"),
        anonymous=_anonymous(fields),
        published=_published(host.table("PortBindings")),
        stop_timeout=config.integer("StopTimeout", _STOP_SECONDS),
    )


def _inner(fields: Fields, name: str) -> Fields:
    return fields.table(name) or Fields({}, name)


def _anonymous(fields: Fields) -> dict[str, str]:
    mounts = fields.each("Mounts", (), Fields)
    named = {mount.text("Destination", ""): mount.text("Name", "") for mount in mounts}
    return {target: name for target, name in named.items() if _ANONYMOUS.fullmatch(name)}


def _published(bindings: Fields | None) -> tuple[Endpoint, ...]:
    found = []
    for inside in bindings or ():
        protocol = inside.rpartition("/")[2]
        for address, number in bindings.each(inside, (), _binding) if bindings else ():
            if protocol in ("tcp", "udp") and number.isdecimal():
                found.append(Endpoint(Protocol(protocol), ip_address(address or "0.0.0.0"), int(number)))
    return tuple(found)


def _binding(value: object, where: str) -> tuple[str, str]:
    binding = Fields(value, where)
    return binding.text("HostIp", ""), binding.text("HostPort", "")
