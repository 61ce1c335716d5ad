"""What is built: the same bytes wherever and by whatever Python it is built, named by a digest beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from agent import __version__
from agent.bundle import open_bundle
from tests.built.conftest import ROOT
from tests.built.starting import assert_runs, run
from tests.built.test_reach import pythons


def test_another_folder_and_another_python_build_the_same_bytes(built_file: Path, place: Path) -> None:
    tree = place / "a folder of another name"
    left_out = shutil.ignore_patterns("build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)
    # What was fetched by its digest is the same wherever it is fetched.
    shutil.copytree(ROOT / "build/wheels", tree / "build/wheels")
    used = {sys.version_info[:2]}
    # Another Python, where this machine has one.
    others = [path for name, path in pythons().items() if (3, int(name.split(".")[1])) not in used]
    other = next(iter(others), Path(sys.executable))
    environment = {**os.environ, "PYTHON": str(other), "TZ": "Asia/Tokyo", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    done = subprocess.run(
        ["sh", "-c", 'umask 077; exec "$0" -o "$1"', tree / "build.sh", place / "out/agent"],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (place / "out/agent").read_bytes() == built_file.read_bytes()


def test_sums_lie_beside_it(built_file: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=built_file.parent, check=True)
    assert re.fullmatch(r"[0-9a-f]{64}  agent\n", (built_file.parent / "SHA256SUMS").read_text())


def test_version_says_what_it_is(file: Path, place: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        record = json.loads(archive.read("build.json"))
    bundle = open_bundle(file)
    assert record["bundle"] == {"name": bundle.name, "digest": bundle.digest}
    said = assert_runs(run([file, "--version"], {"AGENT_STATE": str(place / "state")}, place))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert record["commit"].removesuffix("-dirty") == commit.strip()
    machine = os.uname().machine
    assert re.fullmatch(
        rf"agent {re.escape(__version__)}, commit {record['commit']}, build {record['id']}, "
        rf"bundle native {bundle.digest[:12]}, Python 3\.\d+\.\d+\S*, linux {machine}\n",
        said,
    )
