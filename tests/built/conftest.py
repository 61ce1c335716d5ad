"""The one file, built once for all the tests that run it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def built_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `./build.sh` makes of this tree."""
    path = tmp_path_factory.mktemp("built") / "agent"
    done = subprocess.run([ROOT / "build.sh", "-o", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return path
