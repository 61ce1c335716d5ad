"""What is checked without running the product: style, types, floors, shell, and what no file may name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent

# Written so that this file does not name them itself.
FOREIGN = re.compile(
    rb"(?<![\w.])/[w]ork/|[p]ypi\.org|[p]ythonhosted\.org|[n]pmjs\.|[d]eb\.debian\.|[p]roxy\.golang\.|/opt/[w]heels"
)


@pytest.mark.parametrize(
    "command",
    [
        [TOOLS / "ruff", "check"],
        [TOOLS / "ruff", "format", "--check"],
        [TOOLS / "mypy", "--strict", "agent"],
        [TOOLS / "lint-imports"],
        ["shellcheck", "build.sh", ".ci/run", "agent/header.sh"],
    ],
    ids=lambda command: " ".join([Path(command[0]).name, *command[1:]]),
)
def test_linter_has_nothing_to_say(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_names_a_registry_or_a_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    files = [ROOT / name for name in listed.decode().split("\0") if name]
    assert files
    named = {str(file): FOREIGN.findall(file.read_bytes()) for file in files if file.is_file()}
    assert {file: found for file, found in named.items() if found} == {}
