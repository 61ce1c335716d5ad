"""What each kind of resource can say, as values. A spec is complete: defaults are in it, paths are resolved.

A `Template` in a spec may still hold secrets and fingerprints; everything else is filled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from agent.resources.ports import Port
from agent.template import Template


@dataclass(frozen=True, slots=True)
class Directory:
    """`data`: what lies in it belongs to it; kept by every prune, removed with it only by a reset."""

    path: Path
    mode: int
    owner: str
    data: bool


@dataclass(frozen=True, slots=True)
class Inline:
    """Content as the list gives it; a template that holds no reference for content that is none."""

    template: Template


@dataclass(frozen=True, slots=True)
class FromBlob:
    """Content that the bundle carries beside its list."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class File:
    """A regular file."""

    path: Path
    mode: int
    owner: str
    content: Inline | FromBlob


# A value of the mesh's, in bytes of UTF-8; half of the longest variable that Linux gives to a program (MAX_ARG_STRLEN).
LARGEST_SECRET = 64 * 1024
# How much longer a box is than what is in it (libsodium's crypto_box_SEALBYTES).
SEAL_BYTES = 48


@dataclass(frozen=True, slots=True)
class Random:
    """`size` random bytes, made on the machine and once; the value is their lower-case hexadecimal."""

    size: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """What the mesh chose, in a box that only the node opens; the value is the UTF-8 text inside."""

    box: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that is kept at `path`, which tells apart who chose it."""

    path: Path
    owner: str
    value: Random | Sealed


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed pair in PEM files. `hosts`, one at least, are its subject alternative names."""

    certificate: Path
    key: Path
    owner: str
    hosts: tuple[str, ...]
    days: int


@dataclass(frozen=True, slots=True)
class Package:
    """`masks`: systemd units that its installation must not start, by their full names.

    `files`: package files that the bundle carries, of several distributions and architectures maybe; where there are
    any, it is installed from those that fit the machine and nothing else.
    """

    name: str
    masks: tuple[str, ...]
    files: tuple[FromBlob, ...] = ()


@dataclass(frozen=True, slots=True)
class TcpReady:
    """Ready when a connection to this port is accepted; its address is one that can be connected to."""

    port: Port


@dataclass(frozen=True, slots=True)
class CommandReady:
    """Ready when this command ends with 0."""

    command: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class FileReady:
    """Ready when this file of the machine was written after the start."""

    path: Path


@dataclass(frozen=True, slots=True)
class LoginReady:
    """Ready when this AMQPS account can log in; `address` is amqps://HOST:PORT."""

    address: str
    account: str
    password: Template
    fingerprint: Template


Readiness = TcpReady | CommandReady | FileReady | LoginReady


@dataclass(frozen=True, slots=True)
class Ready:
    """When a service or container counts as applied; `timeout` in seconds."""

    when: Readiness
    timeout: int


@dataclass(frozen=True, slots=True)
class Service:
    """`watches`: files whose change restarts it. `stop_timeout` in seconds, then SIGKILL."""

    name: str
    command: tuple[Template, ...]
    user: str
    environment: tuple[tuple[str, Template], ...]
    directory: Path
    ports: tuple[Port, ...]
    ready: Ready | None
    watches: tuple[Path, ...]
    stop_signal: str
    stop_timeout: int


class EngineName(Enum):
    """The container engines, by their commands."""

    PODMAN = "podman"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True)
class Image:
    """`archive` is what the bundle carries of it; without one it comes from a registry, unless it is there.

    `engine` is None when the list leaves that to the machine.
    """

    name: str
    archive: FromBlob | None
    engine: EngineName | None


@dataclass(frozen=True, slots=True)
class Bind:
    """A path of the machine, seen at `target` inside."""

    source: Path
    target: Path
    read_only: bool


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of the engine's, made when absent, seen at `target` inside."""

    name: str
    target: Path
    read_only: bool


Mount = Bind | Volume


@dataclass(frozen=True, slots=True)
class Published:
    """A host port whose traffic goes to the port `container` inside. Its address is a literal one, never `*`."""

    host: Port
    container: int


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """The machine's own network: what the container binds there is declared, not published."""

    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class Bridge:
    """A network of the engine's; `name` is "" for its default one. Another is made when absent."""

    name: str
    ports: tuple[Published, ...]


Network = HostNetwork | Bridge


@dataclass(frozen=True, slots=True)
class Limits:
    """`memory` in bytes, `cpus` as a decimal number, `pids` processes, `nofile` open files; None: the engine's."""

    memory: int | None = None
    cpus: str | None = None
    pids: int | None = None
    nofile: int | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """An empty `command` or `entrypoint` is the image's own; "" for `user` and `hostname` is the image's, the engine's.

    `watches`: files whose change replaces it. `stop_timeout` in seconds, then SIGKILL.
    """

    name: str
    engine: EngineName | None
    image: str
    entrypoint: tuple[Template, ...]
    command: tuple[Template, ...]
    environment: tuple[tuple[str, Template], ...]
    mounts: tuple[Mount, ...]
    network: Network
    user: str
    hostname: str
    labels: tuple[tuple[str, str], ...]
    limits: Limits
    restart: str
    ready: Ready | None
    watches: tuple[Path, ...]
    stop_signal: str
    stop_timeout: int

    @property
    def host_ports(self) -> tuple[Port, ...]:
        """The machine's ports that it takes."""
        if isinstance(self.network, HostNetwork):
            return self.network.ports
        return tuple(port.host for port in self.network.ports)


@dataclass(frozen=True, slots=True)
class Reserved:
    """Nothing is made; the machine's own programs hold these ports."""

    ports: tuple[Port, ...]


Spec = Directory | File | Secret | Certificate | Package | Service | Image | Container | Reserved
