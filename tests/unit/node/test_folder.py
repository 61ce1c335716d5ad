from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent.errors import Fatal, Refused
from agent.host import processes
from agent.node import folder
from agent.node.program import Program

REPOSITORY = Path(__file__).parents[3]


def modes(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): f"{stat.S_IMODE(path.stat().st_mode):04o}" for path in [top, *top.rglob("*")]}


def test_a_state_folder_is_made_with_its_modes(ground: Path) -> None:
    state = ground / "with space"
    for _ in range(2):
        folder.prepare(state)
        assert modes(state) == {
            ".": "0711",
            "blobs": "0700",
            "identity": "0700",
            "log": "0700",
            "run": "0700",
            "secrets": "0711",
        }


def test_what_is_ours_is_set_right(ground: Path) -> None:
    state = ground / "state"
    folder.prepare(state)
    for name in ("runtime", "control"):
        (state / name).mkdir(0o700)
    (state / "agent").write_bytes(b"x")
    (state / "identity").chmod(0o755)
    state.chmod(0o700)
    folder.prepare(state)
    assert modes(state)["identity"] == "0700"
    assert modes(state)["."] == "0711"
    # With a ledger it is ours, whatever else somebody has put there: the node must come back.
    (state / "ledger.db").touch()
    (state / "notes.txt").touch()
    folder.prepare(state)


def test_an_empty_folder_and_a_fresh_file_system_may_become_ours(ground: Path) -> None:
    (ground / "lost+found").mkdir(0o700)
    folder.prepare(ground)
    assert modes(ground)["lost+found"] == "0700"


@pytest.mark.parametrize("name", ["notes.txt", ".ssh", "ledger", "Agent", "ledger.db-wal"])
def test_somebody_elses_folder_is_refused_untouched(ground: Path, name: str) -> None:
    (ground / name).mkdir(0o755)
    (ground / "log").mkdir(0o755)
    (ground / "log" / "x").touch(0o644)
    before = modes(ground)
    with pytest.raises(
        Refused, match=f'{ground} holds "{re.escape(name)}", so it is not the agent\'s own folder; .*--state'
    ):
        folder.prepare(ground)
    assert modes(ground) == before


def test_a_place_that_can_be_none_is_refused(ground: Path) -> None:
    with pytest.raises(Refused, match="must be an absolute path"):
        folder.prepare(Path("state"))
    (ground / "file").touch()
    with pytest.raises(Refused, match="is a file, not a directory"):
        folder.prepare(ground / "file")
    (ground / "link").symlink_to("elsewhere")
    with pytest.raises(Refused, match="is a symbolic link"):
        folder.prepare(ground / "link")
    (ground / "real").mkdir()
    (ground / "other").symlink_to("real")
    with pytest.raises(Refused, match="is a symbolic link"):
        folder.prepare(ground / "other")
    assert list((ground / "real").iterdir()) == []


HOLDER = """
import sys
from pathlib import Path
from agent.node import folder
with folder.lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_agent_a_folder_and_the_other_is_named(ground: Path) -> None:
    state = ground / "state"
    folder.prepare(state)
    assert folder.holder(state) is None
    command = [sys.executable, "-c", HOLDER, str(state)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert folder.holder(state) == other.pid
        why = rf"an agent is already running on {state} \(process {other.pid}\)"
        with pytest.raises(Fatal, match=why) as caught, folder.lock(state):
            pass
        assert isinstance(caught.value, folder.Occupied)
        assert caught.value.occupant == folder.occupant(state) == folder.Occupant(processes.find(other.pid), None)
        assert folder.holder(state) == other.pid
        other.kill()
        other.wait()
        assert folder.holder(state) is None
    program = Program("1", "c", "b", "tiny", "d")
    with folder.lock(state, program):
        assert folder.occupant(state) == folder.Occupant(processes.current(), program)
    assert folder.holder(state) is None
