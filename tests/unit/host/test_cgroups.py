from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.host import cgroups, processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def test_the_mount_is_found_in_mountinfo() -> None:
    text = (
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n"
        "41 31 0:38 / /sys/fs/cgroup/the\\040unified rw,relatime shared:4 master:2 - cgroup2 cgroup2 rw\n"
    )
    assert cgroups.mount_point(text) == Path("/sys/fs/cgroup/the unified")
    assert cgroups.mount_point(text.replace("cgroup2", "other")) is None
    assert cgroups.mount_point("") is None


def test_a_group_holds_what_enters_it_or_there_is_none(sleeper: subprocess.Popen[bytes]) -> None:
    name = f"test-{os.urandom(4).hex()}"
    assert cgroups.find(name) is None
    group = cgroups.make(name)
    if group is None:  # This machine lets us make none; then nothing must have been left.
        assert cgroups.find(name) is None
        return
    assert cgroups.make(name) == group == cgroups.find(name)
    assert cgroups.enter(group, sleeper.pid)
    process = processes.find(sleeper.pid)
    assert process is not None
    assert cgroups.members(group) == [process]
    with pytest.raises(Unavailable, match=f"Process {sleeper.pid} is still in the control group"):
        cgroups.remove(group)
    (group / "inner").mkdir()
    assert cgroups.enter(group / "inner", sleeper.pid)
    assert cgroups.members(group) == [process]
    processes.end(lambda: cgroups.members(group))
    sleeper.wait()
    cgroups.remove(group)
    cgroups.remove(group)
    assert cgroups.find(name) is None


def test_an_absent_group_is_empty_and_cannot_be_entered(ground: Path, sleeper: subprocess.Popen[bytes]) -> None:
    assert cgroups.members(ground / "none") == []
    assert not cgroups.enter(ground / "none", sleeper.pid)
