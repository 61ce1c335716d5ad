"""A ground for services of real processes, and the proof that none of them is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.host import cgroups
from agent.kinds.service import Service
from tests.unit.kinds.service.workshop import Workshop, living, until


@pytest.fixture
def workshop(ground: Path) -> Iterator[Workshop]:
    state = ground / "the state"
    state.mkdir(mode=0o711)
    made = Workshop(ground, state, Service(settling=0.2, with_systemd=lambda: False))
    yield made
    group = cgroups.find(made.identity.group)
    members = [process.pid for process in cgroups.members(group)] if group else []
    for pid in {*living(ground), *members}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not living(ground))
    if group is not None and group.exists():
        until(lambda: not cgroups.members(group))
        cgroups.remove(group)
