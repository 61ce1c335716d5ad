"""The one file, built once for all the tests that run it, and the machines that it is run on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent import bundle
from tests.built.lab import Agent, Machine

ROOT = Path(__file__).resolve().parent.parent.parent

# Gives a fresh machine of this name; one that carries the given bundle (its text and blobs) instead of the native one.
MakeMachine = Callable[..., Machine]


@dataclass
class Mesh:
    """A founder `a` and a machine `b` that joined it, each with its agent running."""

    founder: Machine
    joiner: Machine
    founding: Agent
    joining: Agent
    token: str


@pytest.fixture(scope="session")
def built_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `./build.sh` makes of this tree."""
    path = tmp_path_factory.mktemp("built") / "agent"
    done = subprocess.run([ROOT / "build.sh", "-o", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return path


@pytest.fixture
def machine(built_file: Path, tmp_path: Path) -> Iterator[MakeMachine]:
    """Makes machines; whatever runs and lies there in the end is taken away."""
    with ExitStack() as stack:

        def make(name: str, text: str = "", blobs: Mapping[str, bytes] | None = None) -> Machine:
            file = pack(built_file, text, blobs or {}, tmp_path / name) if text else built_file
            made = Machine(file, name)
            stack.callback(made.remove)
            return made

        yield make


@pytest.fixture(scope="module")
def mesh(built_file: Path) -> Iterator[Mesh]:
    """A mesh of two machines for the tests of one module; each leaves both agents running and linked."""
    with ExitStack() as stack:
        founder, joiner = Machine(built_file, "a"), Machine(built_file, "b")
        stack.callback(founder.remove)
        stack.callback(joiner.remove)
        founding = founder.found()
        token = founder.ask("control", "token", "create", "b")
        joining = joiner.up("--token-file", "-", stdin=token)
        joining.wait_for("waiting for declarations")
        yield Mesh(founder, joiner, founding, joining, token)


def pack(file: Path, text: str, blobs: Mapping[str, bytes], folder: Path) -> Path:
    """The file `file`, carrying this bundle instead of its own."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "bundle.toml").write_text(text)
    for name, content in blobs.items():
        (folder / "blobs" / name).write_bytes(content)
    bundle.pack(file, folder, folder / "agent")
    return folder / "agent"
