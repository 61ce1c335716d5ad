"""What tests of every kind stand on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.built.newer import make_newer

ROOT = Path(__file__).resolve().parent.parent

# A deadline would assert a time, and a busy machine is slow at making examples.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")


@pytest.fixture(scope="session", autouse=True)
def orderly_end() -> Iterator[None]:
    """Whatever ends the run lets the fixtures take away what they have started."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def built_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `./build.sh` makes of this tree."""
    path = tmp_path_factory.mktemp("built") / "agent"
    done = subprocess.run([ROOT / "build.sh", "-o", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return path


@pytest.fixture(scope="session")
def newer_file(built_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a later build of it would be, carrying the native bundle."""
    return make_newer(built_file, ROOT / "agent" / "bundles" / "native", tmp_path_factory.mktemp("newer"))


@pytest.fixture
def ground() -> Iterator[Path]:
    """A fresh directory of root's, 0755, that other users can reach and none of them can write above."""
    path = Path(tempfile.mkdtemp(prefix="mesh-agent-test-", dir="/var/lib"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
