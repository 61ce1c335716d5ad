"""Every kind of resource that this agent can make so, by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent.kinds.kind import Kind

_NAMES = ("certificate", "container", "directory", "file", "image", "package", "reserved", "secret", "service")


class _Kinds(Mapping[str, Kind[Any, Any, Any]]):
    """Each kind is loaded when it is first asked for: a list of files doesn't wait for what containers need."""

    def __init__(self) -> None:
        self._loaded: dict[str, Kind[Any, Any, Any]] = {}

    def __getitem__(self, name: str) -> Kind[Any, Any, Any]:
        if name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


def _load(name: str) -> Kind[Any, Any, Any]:
    match name:
        case "certificate":
            from agent.kinds.certificate import Certificate

            return Certificate()
        case "container":
            from agent.kinds.container import Container

            return Container()
        case "directory":
            from agent.kinds.directory import Directory

            return Directory()
        case "file":
            from agent.kinds.file import File

            return File()
        case "image":
            from agent.kinds.image import Image

            return Image()
        case "package":
            from agent.kinds.package import Package

            return Package()
        case "reserved":
            from agent.kinds.reserved import Reserved

            return Reserved()
        case "secret":
            from agent.kinds.secret import Secret

            return Secret()
        case "service":
            from agent.kinds.service import Service

            return Service()
        case _:
            raise KeyError(name)


KINDS: Mapping[str, Kind[Any, Any, Any]] = _Kinds()
