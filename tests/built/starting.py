"""How the built file is started by hand, and what it is to say when it can't."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

NOBODY = 65534
VECTORS = Path(__file__).parent.parent / "vectors" / "rfc8032.json"

# Signs and verifies with unpacked code (its folder is the argument), by the Python that runs this.
_SIGNING = """
import sys
sys.path.insert(0, sys.argv[1])
from agent.envelope import SigningKey, verifies
for line in sys.argv[2:]:
    seed, public, message, signature = map(bytes.fromhex, line.split(","))
    assert SigningKey(seed).sign(message) == signature
    assert verifies(public, message, signature) and not verifies(public, message + b"x", signature)
print("verified", len(sys.argv) - 2)
"""


def run(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    cwd: Path,
    user: int | None = None,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run with nothing in the environment but a PATH and what is given."""
    return subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        input=stdin,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )


def assert_sentence(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One line on standard error that begins with the program's name and says the parts; exit code 1."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("agent: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def assert_runs(done: subprocess.CompletedProcess[str]) -> str:
    """It worked and complained of nothing; what it printed."""
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def signing(python: Sequence[str | Path], code: str | Path) -> list[str | Path]:
    """The command that has a Python sign and verify RFC 8032's vectors with the code in `code`; prints how many."""
    vectors = json.loads(VECTORS.read_text())
    lines = [",".join(vector[name] for name in ("seed", "public", "message", "signature")) for vector in vectors]
    return [*python, "-I", "-S", "-c", _SIGNING, code, *lines]
