"""What tests of every kind stand on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A deadline would assert a time, and a busy machine is slow at making examples.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")


@pytest.fixture
def ground() -> Iterator[Path]:
    """A fresh directory of root's, 0755, that other users can reach and none of them can write above."""
    path = Path(tempfile.mkdtemp(prefix="mesh-agent-test-", dir="/var/lib"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
