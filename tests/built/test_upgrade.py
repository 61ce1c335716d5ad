"""Another file's `up` where an agent runs: what it says, what it does, what stays, and what keeps it from beginning."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from agent import __version__, bundle
from agent.envelope import SigningKey
from agent.node.ledger import open_ledger
from tests.broker.nodes import declaration
from tests.built.conftest import pack
from tests.built.lab import PATH, SHORT, Agent, Machine, is_alive, look_of, wait_until
from tests.built.newer import VERSION
from tests.built.starting import assert_sentence
from tests.killing import killing

Make = Callable[[], Machine]

KEPT = "what is raised is kept so"
# `watcher` stands for the control plane: it is this file itself, and tells at each start what was there already.
BUNDLE = """
name = "steps"
[params]
place = "/nowhere"
[[resource]]
kind = "directory"
name = "${{param.place}}"
[[resource]]
kind = "service"
name = "sleeper"
command = ["/bin/sleep", "100000"]
ready = {{ command = ["/bin/true"] }}
[[resource]]
kind = "file"
name = "${{param.place}}/word"
content = "{word}"
[[resource]]
kind = "service"
name = "watcher"
directory = "${{param.place}}"
watches = ["${{agent}}"]
command = ["/bin/sh", "-c", "echo started after $(cat word) >>starts; exec sleep 100000"]
ready = {{ file = "${{param.place}}/starts" }}
{more}
"""


def text(word: str, more: str = "") -> str:
    return BUNDLE.format(word=word, more=more)


@pytest.fixture(scope="session")
def older(built_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(built_file, text("old"), {}, tmp_path_factory.mktemp("older") / "bundle")


@pytest.fixture(scope="session")
def newer(newer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(newer_file, text("new"), {}, tmp_path_factory.mktemp("newer") / "bundle")


@pytest.fixture(scope="session")
def both_unpacked(unpacked: Path, newer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both files unpack at their first start."""
    state = tmp_path_factory.mktemp("both") / "state"
    shutil.copytree(unpacked, state / "runtime")
    environment = {"PATH": PATH, "AGENT_STATE": str(state)}
    subprocess.run([newer_file, "--version"], env=environment, check=True, capture_output=True)
    return state / "runtime"


@pytest.fixture
def make(older: Path, both_unpacked: Path) -> Iterator[Make]:
    """Makes machines with the older file; nothing is left of them."""
    with ExitStack() as stack:

        def make() -> Machine:
            made = Machine(older, "one", both_unpacked)
            made.params = {"place": str(made.folder / "place")}
            stack.callback(made.remove)
            return made

        yield make


def raised(machine: Machine) -> Agent:
    """The machine's file, raised for the first time and kept."""
    agent = machine.up("--name", "one", *machine.settings)
    agent.wait_for(KEPT)
    return agent


def starts(machine: Machine) -> list[str]:
    """What the watcher told at each of its starts."""
    return (machine.folder / "place" / "starts").read_text().splitlines()


def schema(path: Path, new: int | None = None) -> int:
    """The schema of a database, which becomes another one where that is given."""
    with closing(sqlite3.connect(path)) as database:
        before = int(database.execute("PRAGMA user_version").fetchone()[0])
        if new is not None:
            database.execute(f"PRAGMA user_version = {new}")
        return before


def pids(machine: Machine) -> list[int]:
    found = [machine.main_process("sleeper"), machine.main_process("watcher")]
    assert all(map(is_alive, found))
    return found


def test_another_file_takes_over_and_an_older_one_does_not_come_back(make: Make, older: Path, newer: Path) -> None:
    one = make()
    before = raised(one)
    sleeper, watcher = pids(one)
    one.file = newer
    after = one.up("--drift-interval", "1")
    after.wait_for(KEPT)
    assert before.process.wait(SHORT) == 0
    place, said = one.folder / "place", after.output
    digests = r"[0-9a-f]{12} → (steps )?[0-9a-f]{12}"
    assert re.search(
        rf"^this file takes the place of another: version {re.escape(__version__)} → {VERSION}, "
        rf"commit \S+ → \S+, build {digests}, bundle steps {digests}$",
        said,
        re.MULTILINE,
    ), said
    assert [line for line in after.lines if re.match(r"(create|change|keep|remove) ", line)] == [
        f"keep    directory:{place}",
        "keep    service:sleeper",
        f"change  file:{place}/word  other content",
        f"change  service:watcher  {one.state}/agent has changed since its start",
    ]
    assert f"the agent that ran here (process {before.process.pid}) has ended; all that it raised runs on\n" in said
    assert re.findall(r"\d/4 +(\S+)  (\w+)", said) == [
        (f"directory:{place}", "kept"),
        ("service:sleeper", "kept"),
        (f"file:{place}/word", "changed"),
        ("service:watcher", "changed"),
    ]
    # It was started anew once, after all the rest; what is looked at again and again is left alone.
    (place / "word").write_text("other")
    after.wait_for(f"put right: file:{place}/word changed")
    assert starts(one) == ["started after old", "started after new"]
    assert pids(one)[0] == sleeper
    assert not is_alive(watcher)
    assert one.json("status")["agent"] == after.process.pid
    assert {line["state"] for line in one.status().values()} == {"as declared"}
    assert (one.state / "agent").read_bytes() == newer.read_bytes()
    assert schema(one.state / "ledger.db") == 2
    assert not (one.state / "run" / "agent.new").exists()

    # Neither the same file takes over nor, whoever starts it, the copy that was settled; nor one that would not stay.
    agent = f"(process {after.process.pid})"
    assert_sentence(one.run("up"), f"an agent is already running on {one.state} {agent}")
    one.file = one.state / "agent"
    assert_sentence(one.run("up"), f"an agent is already running on {one.state} {agent}")
    # The older file would not understand the ledger, and says so while it is no harm.
    one.file = older
    ours = pids(one)
    for command in (("up",), ("plan",), ("status",), ("ports",)):
        assert_sentence(one.run(*command), "ledger.db has schema 2, this program knows up to 1; use the newer program")
    assert (after.process.poll(), pids(one), schema(one.state / "ledger.db")) == (None, ours, 2)
    assert (one.state / "agent").read_bytes() == newer.read_bytes()
    assert after.end() == 0
    assert_sentence(one.run("reset", "--yes"), "ledger.db has schema 2")
    assert pids(one) == ours


def test_the_same_code_with_another_bundle_may_come_and_go(make: Make, older: Path, tmp_path: Path) -> None:
    one = make()
    before = raised(one)
    ours = pids(one)
    other = pack(older, text("other"), {}, tmp_path / "other")
    one.file = other
    refused = one.run("up", "--once")
    assert_sentence(refused, f"an agent of another file is running on {one.state} (process {before.process.pid})")
    assert (before.process.poll(), starts(one)) == (None, ["started after old"])
    then = one.up()
    then.wait_for(KEPT)
    assert f"place of another: bundle steps {bundle.open_bundle(older).digest[:12]} → steps " in then.output
    assert before.process.wait(SHORT) == 0
    one.file = older
    again = one.up()
    again.wait_for(KEPT)
    assert then.process.wait(SHORT) == 0
    assert starts(one) == ["started after old", "started after other", "started after old"]
    assert pids(one)[0] == ours[0]
    assert again.end() == 0
    # A folder's bundle is packed into the copy once, and is not packed again when it is what the copy carries.
    options = ("--once", "--bundle", tmp_path / "other")
    assert one.run("up", *options).returncode == 0
    settled = look_of(one.state / "agent"), (one.state / "agent").stat().st_ino
    assert bundle.open_bundle(one.state / "agent").digest == bundle.open_bundle(other).digest
    assert one.run("up", *options).returncode == 0
    assert (look_of(one.state / "agent"), (one.state / "agent").stat().st_ino) == settled


def test_nothing_that_runs_needs_what_was_copied_here(make: Make, built_file: Path, tmp_path: Path) -> None:
    one = make()
    more = '[[resource]]\nkind = "file"\nname = "${param.place}/blob"\nblob = "blob"'
    copied, blob = pack(built_file, text("old", more), {"blob": b"first"}, tmp_path / "old"), one.folder / "place/blob"
    one.file = copied
    agent = one.up("--name", "one", "--drift-interval", "1", *one.settings)
    agent.wait_for(KEPT)
    copied.unlink()
    blob.unlink()
    agent.wait_for(f"put right: file:{blob} created")
    assert blob.read_bytes() == b"first"
    # Nor the folder of a bundle.
    pack(built_file, text("other", more), {"blob": b"second"}, tmp_path / "other")
    one.file = built_file
    other = one.up("--bundle", tmp_path / "other", "--drift-interval", "1")
    other.wait_for(KEPT)
    assert agent.process.wait(SHORT) == 0
    shutil.rmtree(tmp_path / "other")
    blob.unlink()
    other.wait_for(f"put right: file:{blob} created")
    assert blob.read_bytes() == b"second"


def test_a_full_disk_keeps_the_agent_that_runs(make: Make, newer: Path) -> None:
    one = make()
    kept = one.folder / "kept"
    one.state.rename(kept)
    one.state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=711,size=128m", "none", one.state], check=True)
    try:
        shutil.copytree(kept, one.state, dirs_exist_ok=True)
        before = raised(one)
        one.file = newer
        for room, why in (
            (4096, "is full"),
            (newer.stat().st_size // 2, "is full"),
            (newer.stat().st_size, "MiB left"),
        ):
            there = shutil.disk_usage(one.state).free - room - 65536
            (one.state / "log" / "much").write_bytes(b"x" * there)
            done = one.run("up")
            assert done.returncode == 1
            assert why in done.stderr
            assert before.process.poll() is None
            assert not (one.state / "run" / "agent.new").exists()
            (one.state / "log" / "much").unlink()
        after = one.up()
        after.wait_for(KEPT)
        assert before.process.wait(SHORT) == 0
    finally:
        one.lose_power()
        subprocess.run(["umount", one.state], check=True)


def test_what_the_mesh_has_declared_keeps_a_bundle_out(make: Make, older: Path, tmp_path: Path) -> None:
    one = make()
    assert one.run("up", "--once", "--name", "one", *one.settings).returncode == 0
    theirs, ours = one.folder / "theirs", pids(one)
    key = SigningKey(b"s" * 32)
    data = json.dumps(declaration("one", 7, {"kind": "file", "name": str(theirs), "content": "declared"})).encode()
    with closing(open_ledger(one.state, time.time, write=True)) as ledger:
        ledger.accept(7, data, key.sign(data), key.public, [], None)
    before = one.up()
    before.wait_for(KEPT)
    wait_until(theirs.exists, SHORT)
    more = f'[[resource]]\nkind = "file"\nname = "{theirs}"\ncontent = "carried"'
    one.file = pack(older, text("other", more), {}, tmp_path / "other")
    for _ in range(2):
        assert_sentence(
            one.run("up"),
            "this bundle claims what the mesh has declared for this node: ",
            f"file:{theirs} is declared twice; nothing was changed",
        )
    assert (before.process.poll(), pids(one)) == (None, ours)
    assert (one.state / "agent").read_bytes() == older.read_bytes()
    assert before.end() == 0
    # Where it was settled all the same, only what can't be had fails.
    shutil.copy(one.file, one.state / "agent")
    one.file = one.state / "agent"
    done = one.run("up", "--once")
    assert (done.returncode, done.stderr) == (2, "")
    assert f"file:{theirs}  failed" in done.stdout
    assert starts(one)[1:] == ["started after other"]
    assert theirs.read_text() == "declared"
    assert one.status()[f"file:{theirs}"]["state"] == "as declared"


# While the copy is written; before the other one is asked; before the copy is put into its place; in the ledger's
# migration; before a file is.
@pytest.mark.parametrize(
    ("call", "at", "survived"),
    [
        ("renameat", 2, True),
        ("pidfd_send_signal", 1, True),
        ("renameat", 4, False),
        ("fdatasync", 1, False),
        ("renameat", 5, False),
    ],
)
def test_killed_while_it_takes_over(make: Make, older: Path, newer: Path, call: str, at: int, survived: bool) -> None:
    one = make()
    before = raised(one)
    sleeper = pids(one)[0]
    one.file = newer
    killed = one.run("up", before=killing(call, at))
    assert killed.returncode == -9, killed.stdout + killed.stderr
    if survived:
        assert before.process.poll() is None
        assert before.end() == 0
    assert before.process.wait(SHORT) == 0
    assert starts(one) == ["started after old"]
    if schema(one.state / "ledger.db") == 1:
        one.file = older
        assert one.run("up", "--once").returncode == 0
        assert starts(one) == ["started after old"]
        one.file = newer
    done = one.run("up", "--once")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert starts(one) == ["started after old", "started after new"]
    assert pids(one)[0] == sleeper
    assert (one.state / "agent").read_bytes() == newer.read_bytes()
    assert [path.name for path in (one.state / "run").glob("*agent*")] == ["agent.lock", "agent.new.lock"]


def test_the_mesh_sees_the_new_version_and_the_control_plane_is_restarted_once(
    built_file: Path, newer_file: Path, both_unpacked: Path
) -> None:
    founder = Machine(built_file, "a", both_unpacked)
    try:
        before = founder.found()
        listed = founder.json("control", "node", "list")["nodes"]
        assert [node["version"] for node in listed] == [__version__]
        broker, control = founder.main_process("broker"), founder.main_process("control")
        founder.file = newer_file
        # What the control plane keeps may be newer still than this file is.
        known = schema(founder.state / "control" / "store.db", 99)
        assert_sentence(founder.run("up"), f"store.db has schema 99, this program knows up to {known}")
        assert schema(founder.state / "control" / "store.db", known) == 99
        assert before.process.poll() is None
        assert founder.main_process("control") == control
        after = founder.back()
        assert before.process.wait(SHORT) == 0
        assert founder.main_process("broker") == broker
        assert founder.main_process("control") != control
        log = (founder.state / "log" / "control.log").read_text()
        log += "".join(path.read_text() for path in (founder.state / "log").glob("control.log.*"))
        assert log.count("The control plane is ready.") == 2
        changed = [line.split()[1:3] for line in after.lines if re.match(r" *\d+/14 ", line) and "kept" not in line]
        assert changed == [["service:control", "changed"]]

        def reported() -> bool:
            return [node["version"] for node in founder.json("control", "node", "list")["nodes"]] == [VERSION]

        wait_until(reported, SHORT)
        assert re.search(rf"^agent +{VERSION}$", founder.ask("control", "node", "show", "a"), re.MULTILINE)
    finally:
        founder.remove()
