"""What each kind of resource can say, as values. A spec is complete: defaults are in it, paths are resolved.

A `Template` in a spec may still hold secrets and fingerprints; everything else is filled.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Secret:
    """`size` random bytes, kept at `path` as lower-case hexadecimal."""

    path: Path
    owner: str
    size: int


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
    """`masks`: systemd units that its installation must not start, by their full names."""

    name: str
    masks: tuple[str, ...]


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
    """Ready when this file was written after the service's start."""

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
    """When a service counts as applied; `timeout` in seconds."""

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


@dataclass(frozen=True, slots=True)
class Reserved:
    """Nothing is made; the machine's own programs hold these ports."""

    ports: tuple[Port, ...]


Spec = Directory | File | Secret | Certificate | Package | Service | Reserved
