"""Every kind of resource that this agent can make so, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.kinds.certificate import Certificate
from agent.kinds.container import Container
from agent.kinds.directory import Directory
from agent.kinds.file import File
from agent.kinds.image import Image
from agent.kinds.kind import Kind
from agent.kinds.package import Package
from agent.kinds.reserved import Reserved
from agent.kinds.secret import Secret
from agent.kinds.service import Service

KINDS: Mapping[str, Kind[Any, Any, Any]] = {
    "certificate": Certificate(),
    "container": Container(),
    "directory": Directory(),
    "file": File(),
    "image": Image(),
    "package": Package(),
    "reserved": Reserved(),
    "secret": Secret(),
    "service": Service(),
}
