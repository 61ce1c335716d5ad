from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.kinds.package import locks
from agent.kinds.package.apk import Apk
from agent.kinds.package.apt import Apt
from agent.kinds.package.dnf import Dnf
from agent.kinds.package.installer import Installer
from agent.kinds.package.zypper import Zypper


def test_the_holder_of_a_lock() -> None:
    text = (
        "1: POSIX  ADVISORY  WRITE 411 08:01:131 0 EOF\n"
        "1: -> POSIX  ADVISORY  WRITE 500 08:01:131 0 EOF\n"
        "2: OFDLCK ADVISORY  READ -1 00:06:13 0 0\n"
    )
    assert locks.parse_holder(text, 131) == 411
    assert locks.parse_holder(text, 13) is None
    assert locks.parse_holder(text, 1) is None
    assert locks.parse_holder("", 131) is None


HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read(1)
"""
HOLD_WHOLE = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read(1)
"""


Make = Callable[[Path, float], Installer]


def apt(database: Path, patience: float) -> Installer:
    return Apt(database=database, patience=patience)


def dnf(database: Path, patience: float) -> Installer:
    return Dnf(database=database, patience=patience)


def zypper(database: Path, patience: float) -> Installer:
    return Zypper(database=database, patience=patience)


def apk(database: Path, patience: float) -> Installer:
    return Apk(database=database, patience=patience)


@contextmanager
def held(script: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process


@pytest.mark.parametrize(
    ("make", "name", "script"),
    [
        (apt, "lock-frontend", HOLD),
        (apt, "lock", HOLD),
        (dnf, ".rpm.lock", HOLD),
        (zypper, ".rpm.lock", HOLD),
        (apk, "lock", HOLD_WHOLE),
    ],
)
def test_who_holds_the_lock_is_named(tmp_path: Path, make: Make, name: str, script: str) -> None:
    make(tmp_path, 60).wait_for_lock()
    (tmp_path / name).touch()
    with held(script, tmp_path / name) as holder:
        with pytest.raises(Unavailable) as failure:
            make(tmp_path, 0.3).wait_for_lock()
        assert f"process {holder.pid} ({sys.executable}" in str(failure.value)
        assert str(failure.value).endswith(f"holds {tmp_path / name}; wait for it to end.")
    make(tmp_path, 60).wait_for_lock()


def test_the_lock_is_waited_for(tmp_path: Path) -> None:
    with held(HOLD, tmp_path / "lock-frontend") as holder:
        assert holder.stdin is not None
        holder.stdin.close()
        Apt(database=tmp_path, patience=60).wait_for_lock()
        deadline = time.monotonic() + 20
        while holder.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("make", [apt, dnf, zypper, apk])
def test_two_agents_take_turns(tmp_path: Path, make: Make) -> None:
    with (
        held(HOLD_WHOLE, tmp_path),
        pytest.raises(Unavailable, match="Another agent on this machine is installing"),
        make(tmp_path, 0.3).alone(),
    ):
        pass
    with make(tmp_path, 0.3).alone():
        pass
    assert list(tmp_path.iterdir()) == []
