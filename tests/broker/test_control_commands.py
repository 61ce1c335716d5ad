"""What can be typed on the founder, as processes: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agent.envelope import SigningKey
from tests.broker.nodes import ROOT, SOON, Founder
from tests.broker.plane import Newcomer
from tests.broker.rabbit import wait_until


@pytest.fixture
def founder(rabbit, ground):
    founder = Founder(rabbit, ground)
    try:
        founder.start()
        yield founder
    finally:
        founder.kill()


def asked(founder, *words, code=0):
    done = founder.ask(*words)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def test_tokens(founder):
    secret = asked(founder, "token", "create", "a", "--ttl", "15m").strip()
    listed = asked(founder, "token", "list")
    assert [line.split()[:2] for line in listed.splitlines()] == [["NODE", "STATE"], ["a", "good"], ["founder", "good"]]
    told = json.loads(asked(founder, "token", "list", "-o", "json"))["tokens"]
    assert [(one["node"], one["state"]) for one in told] == [("a", "good"), ("founder", "good")]
    assert secret not in listed
    asked(founder, "token", "revoke", "a")
    assert "no token" in asked(founder, "token", "revoke", "a", code=1)
    assert "--replace only" in asked(founder, "token", "create", "a", "--now", code=1)


def test_nodes(founder):
    with founder.join("a") as node:
        node.report(0, carried=[80], failed={"file:/x": "no room"})
        founder.wait_for("a", lambda detail: detail.carried)
        listed = asked(founder, "node", "list").splitlines()
        assert listed[0].split()[:5] == ["NODE", "STATE", "HEARD", "WANTED", "APPLIED"]
        assert listed[1].split()[:2] == ["a", "here"]
        node.send("alive", {"node": "a"}, user_id=node.account, timestamp=2**31)
        founder.wait_for("a", lambda detail: detail.row.clock_offset)
        assert "the clock of a is" in asked(founder, "node", "list")
        (told,) = json.loads(asked(founder, "node", "list", "-o", "json"))["nodes"]
        assert (told["assigned_ports"], told["version"]) == ([], "7.7")
        assert told["clock_offset"] > 0
        shown = asked(founder, "node", "show", "a")
        assert "no room" in shown
        assert "ahead" in shown
        assert 'did you mean "a"' in asked(founder, "node", "remove", "aa", code=1)
        asked(founder, "node", "remove", "a")
        assert len(asked(founder, "node", "list").splitlines()) == 2


def test_a_list_that_is_watched_is_printed_again_when_something_changes(founder, ground):
    output = ground / "watched"
    with founder.join("a") as node, output.open("wb") as file:
        watching = subprocess.Popen(
            [sys.executable, "-m", "agent", "control", "node", "list", "--watch", "--state", str(founder.state)],
            cwd=ROOT,
            stdout=file,
            stderr=file,
        )
        try:
            wait_until(lambda: "never spoken" in output.read_text(), SOON)
            node.alive()
            wait_until(lambda: output.read_text().count("NODE") == 2, SOON)
            assert "here" in output.read_text()
        finally:
            watching.terminate()
            watching.wait()


def test_parked(founder):
    assert asked(founder, "parked", "list").splitlines() == ["ID  AT  FROM  AS  WHY"]
    with founder.join("a") as node:
        node.send("report", b"no JSON", user_id=node.account)
        node.send("alive", {"node": "b"}, user_id=node.account)
        founder.wait_for_parked(2)
    one, two = json.loads(asked(founder, "parked", "list", "-o", "json"))["parked"]
    assert "not readable JSON" in one["why"]
    shown = asked(founder, "parked", "show", one["id"])
    assert "body       no JSON" in shown
    assert "came with  user_id: node.a" in shown
    assert "or --all" in asked(founder, "parked", "drop", code=1)
    assert "or --all" in asked(founder, "parked", "drop", one["id"], "--all", code=1)
    assert asked(founder, "parked", "drop", one["id"]) == "1 parked message dropped\n"
    assert "1 parked message given" in asked(founder, "parked", "retry", two["id"])
    assert "No parked message" in asked(founder, "parked", "show", one["id"], code=1)


def test_keys(founder):
    with founder.join("a"):
        assert "key 2 is made" in asked(founder, "key", "rotate")
        (first, second) = json.loads(asked(founder, "key", "list", "-o", "json"))["keys"]
        assert (first["state"], first["nodes"], second["state"]) == ("counts", ["a"], "newest")
        assert "needed by a" in asked(founder, "key", "retire", "1", code=1)
        asked(founder, "key", "retire", "1", "--force")
        assert [line.split()[0] for line in asked(founder, "key", "list").splitlines()] == ["KEY", "1", "2"]


def test_a_token_made_after_a_rotation_names_the_new_key(founder):
    asked(founder, "key", "rotate")
    token = founder.token("a")
    with founder.control() as control:
        assert token.signer == control.keys()[-1].public_key
    with Newcomer(founder.rabbit, token, SigningKey(b"n" * 32)) as newcomer:
        reply = newcomer.enrol()
    with newcomer.node(reply) as node:
        node.report(0)
        founder.wait_for("a", lambda detail: detail.row.applied == 0)
    # The founder's own token, which nobody has spent, is made anew under the new key.
    wait_until(lambda: founder.ask("key", "retire", "1").returncode == 0, SOON)


def test_backups(founder, ground):
    assert "No certificate" in asked(founder, "backup", str(ground / "file"), code=1)
    assert "has run here already" in asked(founder, "restore", str(ground / "file"), code=1)
