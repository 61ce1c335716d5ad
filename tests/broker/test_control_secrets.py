"""The mesh's secrets: from the command that keeps one to programs on two machines that get it; and who never does."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.control.declaring import sign
from agent.control.signing import read_keyring
from agent.token import parse_token
from tests.broker.nodes import ROOT, SOON, Founder, Machine, Mesh, mesh_of
from tests.broker.plane import Peer
from tests.broker.rabbit import CONTROL_PASSWORD, Rabbit, wait_until

FIRST, SECOND, THIRD = "first-of-the-values", "second-of-the-values", "third-of-the-values"


@pytest.fixture
def mesh(rabbit: Rabbit, ground: Path) -> Iterator[Mesh]:
    with mesh_of(rabbit, ground) as mesh:
        yield mesh


def ask(founder: Founder, *words: str, stdin: str = "", code: int = 0) -> str:
    done = founder.ask(*words, stdin=stdin)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def service(machine: Machine, name: str, **environment: str) -> dict[str, Any]:
    """A program that writes down what it is started with, a line a start, and goes on."""
    return {
        "kind": "service",
        "name": name,
        "command": ["/bin/sh", "-c", f'echo "$VALUE" >> {machine.targets}/{name}; exec sleep 1000000'],
        "environment": environment,
    }


def starts(machine: Machine, name: str) -> list[str]:
    """What each start of that program was given."""
    path = machine.targets / name
    return path.read_text().splitlines() if path.exists() else []


def wait_for_starts(machine: Machine, name: str, *given: str) -> None:
    wait_until(lambda: starts(machine, name) == list(given), SOON, lambda: str(starts(machine, name)))


def add_module(founder: Founder, name: str, *items: dict[str, Any]) -> str:
    return ask(founder, "module", "add", "-", stdin=json.dumps({"name": name, "resource": list(items)}))


def holders(folder: Path, *values: str) -> set[str]:
    """The files below a folder in which one of these values stands."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {
        str(path.relative_to(folder)) for path in files if any(value.encode() in path.read_bytes() for value in values)
    }


def test_two_machines_share_a_secret_and_hear_of_its_next_value(mesh: Mesh) -> None:
    founder = mesh.founder
    a, _ = mesh.joined("a")
    b, _ = mesh.joined("b")
    said = add_module(founder, "web", service(a, "site", VALUE="at ${secret.db}"), service(a, "other", VALUE="nothing"))
    assert said.endswith('is stored\nwarning: neither the module nor the mesh has a secret "db"\n')
    add_module(founder, "sql", service(b, "base", VALUE="${secret.db}"))

    refused = ask(founder, "assign", "web", "a", code=1)
    assert 'neither the node\'s lists nor the mesh have a secret "db"; `agent control secret set db` gives' in refused
    assert ask(founder, "secret", "set", "db", stdin=f"{FIRST}\n") == (
        "the secret db has a new value, which is its version 1\n"
    )
    ask(founder, "assign", "web", "a")
    ask(founder, "assign", "sql", "b")
    wait_for_starts(a, "site", f"at {FIRST}")
    wait_for_starts(b, "base", FIRST)
    kept = a.state / "secrets" / "root" / "db.mesh"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == (FIRST, 0o600)

    assert ask(founder, "secret", "set", "db", stdin=SECOND).splitlines() == [
        "the secret db has a new value, which is its version 2",
        "declaration 2 for a, which uses the secret db, is signed and on its way",
        "declaration 2 for b, which uses the secret db, is signed and on its way",
        "a has applied it",
        "b has applied it",
    ]
    assert starts(a, "site") == [f"at {FIRST}", f"at {SECOND}"]
    assert starts(b, "base") == [FIRST, SECOND]
    assert starts(a, "other") == ["nothing"]
    assert "had this value already" in ask(founder, "secret", "set", "db", stdin=SECOND)
    assert (founder.detail("a").row.wanted, founder.detail("b").row.wanted) == (2, 2)

    # What is there of it for a person to see.
    assert ask(founder, "plan", "a", "--exit-code").splitlines()[0] == "keep    secret:db"
    listed = ask(founder, "secret", "list")
    assert [line.split()[0] for line in listed.splitlines()] == ["SECRET", "db"]
    assert "web on a, sql on b" in listed
    (told,) = json.loads(ask(founder, "secret", "list", "-o", "json"))
    assert (told["name"], told["version"], told["used_by"][1]) == ("db", 2, {"node": "b", "name": "sql"})
    assert "used by web on a, sql on b" in ask(founder, "secret", "remove", "db", code=1)
    hint = ask(founder, "declare", "a", "-", stdin=json.dumps([service(a, "typo", VALUE="${secret.dbb}")]), code=1)
    assert 'did you mean "db"?' in hint

    # Going back gives what the secret is now.
    assert "warning" not in add_module(founder, "web", service(a, "site", VALUE="by ${secret.db}"))
    ask(founder, "module", "roll", "web")
    ask(founder, "secret", "set", "db", stdin=THIRD)
    ask(founder, "rollback", "a")
    assert starts(a, "site")[-3:] == [f"by {SECOND}", f"by {THIRD}", f"at {THIRD}"]

    # A statement that nobody understands is parked as it came.
    with Peer(founder.rabbit, "control", CONTROL_PASSWORD) as peer:
        peer.send("report", {"node": "a"})
    founder.wait_for_parked(1)
    printed = [ask(founder, *words) for words in (("parked", "list"), ("node", "show", "a"), ("plan", "a"))]
    envelopes = [founder.envelope(node) for node in "ab"] + [json.dumps(founder.wanted(node)).encode() for node in "ab"]
    for value in (FIRST, SECOND, THIRD):
        assert all(
            value not in text for text in (*printed, listed, hint, str(founder.mesh()), str(founder.detail("a")))
        )
        assert all(value.encode() not in body for body in envelopes)
    for machine in (a, b):
        places = holders(machine.folder, FIRST, SECOND, THIRD)
        own = {place for place in places if not place.startswith("targets/")}
        assert own == {"state/secrets/root/db.mesh"}
    assert holders(founder.state, FIRST, SECOND, THIRD) <= {f"control/store.db{end}" for end in ("", "-wal", "-shm")}
    with founder.control() as control:
        history = control._store.declarations.history("a")
    assert len(history) > 3
    assert all(value.encode() not in one.data for one in history for value in (FIRST, SECOND, THIRD))

    # Nobody needs it any more: it goes, there and here.
    ask(founder, "unassign", "web", "a")
    ask(founder, "unassign", "sql", "b")
    assert not kept.parent.exists()
    assert ask(founder, "secret", "remove", "db") == "the secret db is removed\n"
    assert ask(founder, "secret", "list") == "SECRET  VERSION  SINCE  USED BY\n"


def test_whoever_is_the_node_now_can_read_it_and_what_is_lost_there_comes_back(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, agent = mesh.joined("a")
    ask(founder, "secret", "set", "db", stdin=FIRST)
    reads = machine.a_file("reads", "it is ${secret.db}", template=True, mode="0600")
    serial = founder.declare_list("a", reads)
    founder.wait_for_applied("a", serial)
    file, kept = machine.targets / "reads", machine.state / "secrets" / "root" / "db.mesh"
    assert file.read_text() == f"it is {FIRST}"
    agent.kill()

    # Lost or changed here: put right from what was declared, without the mesh.
    kept.unlink()
    file.write_text("changed")
    founder.stop()
    agent = machine.up()
    wait_until(lambda: kept.exists() and file.read_text() == f"it is {FIRST}", SOON, lambda: agent.output)
    founder.start()
    agent.wait_for("waiting for declarations")
    agent.kill()

    # The same machine without its ledger; the secret is no longer declared by then.
    for path in machine.state.glob("ledger.db*"):
        path.unlink()
    serial = founder.declare_list("a", machine.a_file("plain"))
    agent = machine.linked()
    founder.wait_for_applied("a", serial)
    wait_until(lambda: not kept.exists(), SOON, lambda: agent.output)
    serial = founder.declare_list("a", reads)
    founder.wait_for_applied("a", serial)
    agent.kill()

    # Another machine in its place has another key.
    shutil.rmtree(machine.state)
    file.unlink()
    before = founder.detail("a").public_key
    machine.linked(parse_token(ask(founder, "token", "create", "a", "--replace").strip()))
    detail = founder.wait_for("a", lambda detail: detail.public_key != before and bool(detail.holdings))
    wait_until(lambda: founder.detail("a").row.applied == founder.detail("a").row.wanted, SOON)
    assert (founder.detail("a").failures, file.read_text()) == ({}, f"it is {FIRST}")
    assert kept.read_text() == FIRST
    serial = detail.row.wanted

    # Another signing key: the same box, under another signature.
    sealed = founder.wanted("a")["resources"][0]["sealed"]
    ask(founder, "key", "rotate")
    founder.wait_for("a", lambda detail: detail.row.applied is not None and detail.row.applied > serial)
    assert founder.wanted("a")["resources"][0]["sealed"] == sealed


def test_one_that_is_sealed_for_another_node_fails_in_words(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, _ = mesh.joined("a")
    mesh.joined("b")
    ask(founder, "secret", "set", "db", stdin=FIRST)
    reads = machine.a_file("reads", "${secret.db}", template=True)
    serial = founder.declare_list("b", reads)
    founder.wait_for_applied("b", serial)
    stolen = founder.wanted("b")["resources"][0]
    with founder.control() as control, control._store.transaction():
        node = control._store.nodes.get("a")
        assert node is not None
        keys = read_keyring(founder.state, control._store)
        sign(control._store, keys, node, [stolen, reads], ["secret:db", machine.id("reads")], now=1.0)
    detail = founder.wait_for("a", lambda detail: bool(detail.failures))
    assert "sealed for another key than this node's" in detail.failures["secret:db"]
    assert detail.failures[machine.id("reads")] == "it needs secret:db, which failed"
    assert not list(machine.state.glob("secrets/*/*"))


@pytest.fixture(scope="module")
def founder(rabbit_process: Rabbit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Founder]:
    founder = Founder(rabbit_process, tmp_path_factory.mktemp("founder"))
    try:
        founder.start()
        yield founder
    finally:
        founder.kill()
        rabbit_process.clear()


def value_of(founder: Founder, name: str) -> str | None:
    with founder.control() as control:
        secret = control._store.secrets.get(name)
    return secret.value if secret else None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("word\n", "word"),
        ("word\r\n", "word"),
        ("word", "word"),
        ("two words \n", "two words "),
        ("-----BEGIN KEY-----\nAAAA\n-----END KEY-----\n", "-----BEGIN KEY-----\nAAAA\n-----END KEY-----\n"),
        ("word\n\n", "word\n\n"),
        ("x" * 65536 + "\r\n", "x" * 65536),
    ],
)
def test_the_end_of_its_line_is_no_part_of_a_value_of_one_line(founder: Founder, given: str, kept: str) -> None:
    ask(founder, "secret", "set", "x", stdin=given)
    assert value_of(founder, "x") == kept


def test_a_value_may_be_in_a_file(founder: Founder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from a file\n")
    ask(founder, "secret", "set", "x", "--file", str(tmp_path / "file"))
    assert value_of(founder, "x") == "from a file"


@pytest.mark.parametrize(
    ("words", "stdin", "why"),
    [
        (("set", "y", "hidden"), "", "never an argument"),
        (("set", "y", "hidden", "more"), "", "never an argument"),
        (("set", "y"), "", "the value is empty"),
        (("set", "y"), "\n", "the value is empty"),
        (("set", "y"), "hidden" * 12000, "more than 65536 bytes"),
        (("set", "y"), "hid\0den", "zero character"),
        (("set", "Y"), "hidden", '"Y" is no DNS label'),
        (("set", "y", "--file", "/nowhere"), "", "/nowhere cannot be read"),
        (("make", "y", "--bytes", "8"), "", "argument --bytes: must be a whole number from 16 to 1024"),
        (("make", "y", "--bytes", "many"), "", "argument --bytes: must be a whole number from 16 to 1024"),
        (("make", "y", "--timeout", "soon"), "", "argument --timeout: must be from 1 to 86400 seconds"),
        (("set",), "hidden", "required: NAME;"),
        (("make", "made-once"), "", "has a secret made-once already; say --anew"),
        (("remove", "made-twice"), "", 'The mesh has no secret "made-twice"; did you mean "made-once"?'),
        (("show", "made-once"), "", 'there is no command "show"'),
    ],
)
def test_bad_input_is_a_sentence_that_does_not_show_it(
    founder: Founder, words: tuple[str, ...], stdin: str, why: str
) -> None:
    if value_of(founder, "made-once") is None:
        ask(founder, "secret", "make", "made-once")
    before = value_of(founder, "made-once")
    said = ask(founder, "secret", *words, stdin=stdin, code=1)
    assert why in said
    assert said.count("\n") == 1
    assert "hid" not in said
    assert (value_of(founder, "y"), value_of(founder, "made-once")) == (None, before)


def test_the_mesh_makes_one_and_shows_it_to_nobody(founder: Founder) -> None:
    said = ask(founder, "secret", "make", "z", "--bytes", "16")
    first = value_of(founder, "z")
    said += ask(founder, "secret", "make", "z", "--anew")
    second = value_of(founder, "z")
    assert first is not None
    assert second is not None
    assert (len(first), len(second)) == (32, 64)
    said += ask(founder, "secret", "list") + ask(founder, "secret", "list", "-o", "json") + founder.log.read_text()
    assert first not in said
    assert second not in said


@pytest.mark.parametrize(("again", "code"), [("word of mine", 0), ("another word", 1)])
def test_at_a_terminal_it_is_asked_for_twice_and_not_shown(founder: Founder, again: str, code: int) -> None:
    ask(founder, "secret", "set", "asked", stdin="before")
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "agent", "control", "secret", "set", "asked", "--state", str(founder.state)]
    process = subprocess.Popen(["setsid", "--ctty", *words], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""

    def read_until(part: bytes) -> None:
        nonlocal shown
        while part not in shown:
            shown += os.read(ours, 1024)

    try:
        read_until(b"(not shown): ")
        os.write(ours, b"word of mine\n")
        read_until(b"again: ")
        os.write(ours, again.encode() + b"\n")
        read_until(b"the two are not the same" if code else b"version")
        assert process.wait(SOON) == code
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"word" not in shown
    assert value_of(founder, "asked") == ("before" if code else "word of mine")
