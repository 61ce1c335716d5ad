from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from agent.kinds import KINDS
from agent.resources import Spec


def test_there_is_one_for_everything_that_can_be_declared() -> None:
    assert set(KINDS) == {spec.__name__.lower() for spec in get_args(Spec)}
    for name, kind in KINDS.items():
        assert type(kind).__name__.lower() == name


def test_there_is_no_other() -> None:
    assert KINDS.get("fiel") is None
    with pytest.raises(KeyError):
        KINDS["fiel"]


def test_none_is_loaded_before_it_is_asked_for() -> None:
    script = """
import sys
from agent.node import running
from agent.kinds import KINDS
KINDS["file"]
print(*(name for name in sys.modules if name.startswith(("agent.kinds.", "nacl", "pika", "ssl"))))
"""
    root = Path(__file__).parents[3]
    said = subprocess.run([sys.executable, "-c", script], cwd=root, check=True, capture_output=True, text=True).stdout
    loaded = {name.split(".")[2] for name in said.split() if name.startswith("agent.kinds.")}
    assert "file" in loaded
    assert not loaded & (set(KINDS) - {"file"})
    assert not [name for name in said.split() if not name.startswith("agent.")]
