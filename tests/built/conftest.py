"""The machines that the one file is run on."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent import bundle
from tests.built.lab import PATH, Agent, Machine

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


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def settled(place: Path, unpacked: Path) -> Path:
    """A state folder in which the file has been started before."""
    state = place / "state"
    state.mkdir(mode=0o711)
    shutil.copytree(unpacked, state / "runtime")
    return state


@pytest.fixture
def file(place: Path, built_file: Path) -> Path:
    """The built file, alone in that folder."""
    return Path(shutil.copy(built_file, place / "agent"))


@pytest.fixture(scope="session")
def unpacked(built_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the built file unpacks at its first start, which takes it longer than all that it does afterwards."""
    state = tmp_path_factory.mktemp("unpacked") / "state"
    environment = {"PATH": PATH, "AGENT_STATE": str(state)}
    subprocess.run([built_file, "--version"], env=environment, check=True, capture_output=True)
    return state / "runtime"


@pytest.fixture
def machine(built_file: Path, unpacked: Path, tmp_path: Path) -> Iterator[MakeMachine]:
    """Makes machines; whatever runs and lies there in the end is taken away."""
    with ExitStack() as stack:

        def make(name: str, text: str = "", blobs: Mapping[str, bytes] | None = None) -> Machine:
            file = pack(built_file, text, blobs or {}, tmp_path / name) if text else built_file
            made = Machine(file, name, unpacked)
            stack.callback(made.remove)
            return made

        yield make


@pytest.fixture(scope="module")
def mesh(built_file: Path, unpacked: Path) -> Iterator[Mesh]:
    """A mesh of two machines for the tests of one module; each leaves both agents running and linked."""
    with ExitStack() as stack:
        founder, joiner = Machine(built_file, "a", unpacked), Machine(built_file, "b", unpacked)
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
