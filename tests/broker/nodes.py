"""Both sides as processes of their own: a control plane that serves and machines that join it, on one real broker.

A machine is one of the built file's tests, but runs this tree (`up.py`), so that the link's times are the test's.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from agent import __version__, bundle
from agent.control.registry import Refusal
from agent.control.store import Wanted, open_store
from agent.control.views import NodeDetail
from agent.envelope import SigningKey
from agent.node import folder
from agent.resources import Document
from agent.token import Token
from agent.wire import Signed
from tests.broker.plane import Peer, Plane
from tests.broker.rabbit import CONTROL_PASSWORD, Rabbit, wait_until
from tests.built import lab
from tests.built.lab import Agent, look_of
from tests.killing import PATIENCE, has_ended, status, tracer

ROOT = Path(__file__).parents[2]
# How long to wait for what takes a second on an idle machine.
SOON = 60.0
# Short, so that a test sees several of each; long enough for two busy cores.
BRISK: Mapping[str, float] = {"alive_interval": 1.0, "heartbeat": 2, "patience": 5.0}

BUNDLE = """
name = "tiny"
[params]
place = "/nowhere"
[[resource]]
kind = "directory"
name = "${param.place}"
[[resource]]
kind = "file"
name = "${param.place}/carried"
content = "carried\\n"
[[resource]]
kind = "reserved"
name = "own"
ports = ["4022"]
"""
CARRIED_PORTS = (4022,)


class Founder(Plane):
    """`control serve` as a process; what it says is in `log`."""

    def __init__(self, rabbit: Rabbit, state: Path) -> None:
        super().__init__(rabbit, state)
        self.log = state / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agent", "control", "serve", "--state", str(self.state)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def start(self) -> None:
        self.begin()
        wait_until(lambda: self.ready_file.exists() or self.died(), SOON, self.log.read_text)
        assert not self.died(), self.log.read_text()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(SOON)
            self.process = None

    def kill(self) -> None:
        """End it as a loss of power would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def died(self) -> bool:
        """Whether it has ended; one that is traced may be nobody's to wait for yet."""
        return self.process is not None and (self.process.poll() is not None or has_ended(self.process.pid))

    def ask(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run `agent control …` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "agent", "control", *arguments, "--state", str(self.state)],
            cwd=ROOT,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SOON,
        )

    @property
    def key(self) -> SigningKey:
        """What it signs with."""
        return SigningKey((self.state / "control" / "keys" / "1.seed").read_bytes())

    def declare_list(self, node: str, *items: Mapping[str, Any], retire: bool = False) -> int:
        """Declare resources as they are written; the serial."""
        with self.control() as control:
            return control.declare(node, Document({}, items), {}, retire=retire).serial

    def wanted(self, node: str) -> dict[str, Any]:
        """What the newest declaration for a node says."""
        return dict(json.loads(self._wanted(node).data))

    def envelope(self, node: str) -> bytes:
        """The newest declaration for a node as it was sent."""
        wanted = self._wanted(node)
        return Signed(wanted.data, wanted.signature).encode()

    def _wanted(self, node: str) -> Wanted:
        with closing(open_store(self.state)) as store:
            wanted = store.declarations.wanted(node)
        assert wanted is not None
        return wanted

    def wait_for_applied(self, node: str, serial: int) -> NodeDetail:
        """Wait until a node has reported this serial."""
        return self.wait_for(node, lambda detail: detail.row.applied == serial)


class Machine(lab.Machine):
    """A machine whose file carries the tiny bundle. `place` is where it puts its own, `targets` where lists may."""

    def __init__(self, file: Path, name: str, nothing: Path) -> None:
        super().__init__(file, name, unpacked=nothing)
        self.place, self.targets = self.folder / "place", self.folder / "targets"
        self.targets.mkdir()

    def up(  # type: ignore[override]
        self, token: Token | None = None, *, before: tuple[str, ...] = (), **manner: float
    ) -> Agent:
        """Start `agent up`; `before` are words of a program that runs it."""
        asked = {
            "state": str(self.state),
            "file": str(self.file),
            "name": None if token else self.name,
            "settings": {"place": str(self.place)},
            "manner": {**BRISK, **manner},
        }
        agent = Agent(
            [*before, sys.executable, str(ROOT / "tests" / "broker" / "up.py"), json.dumps(asked)],
            {"PATH": lab.PATH, "PYTHONPATH": str(ROOT)},
            self.folder,
            self.folder / f"up.{len(self._agents)}",
            token.encode() if token else "",
        )
        self._agents.append(agent)
        return agent

    def linked(self, token: Token | None = None, **manner: float) -> Agent:
        """Start `agent up`, and wait until its link is up."""
        agent = self.up(token, **manner)
        agent.wait_for("waiting for declarations", SOON)
        return agent

    def a_file(self, name: str, content: str = "x", **fields: Any) -> dict[str, Any]:
        """A file of this machine's, to be declared."""
        return {"kind": "file", "name": str(self.targets / name), "content": content, **fields}

    def id(self, name: str) -> str:
        """The id of such a file."""
        return f"file:{self.targets / name}"

    def end_agents(self) -> None:
        """End its agent, if one runs, as a loss of power would."""
        pid = folder.holder(self.state) if self.state.exists() else None
        if pid is not None:  # not that of a program which runs it
            os.kill(pid, signal.SIGKILL)
        for agent in self._agents:
            agent.process.wait(SOON)

    def lose_power(self) -> None:
        self.end_agents()
        super().lose_power()

    @property
    def key(self) -> SigningKey:
        """Its own, by which the mesh knows it."""
        return SigningKey((self.state / "identity" / "signing.seed").read_bytes())

    def knows_whom_to_join(self) -> bool:
        """Whether the token was kept, or has done its work."""
        return any((self.state / "identity" / name).exists() for name in ("token", "membership.json"))

    def membership(self) -> dict[str, Any]:
        """How it logs in."""
        return dict(json.loads((self.state / "identity" / "membership.json").read_text()))

    def recovery(self) -> list[str]:
        """The recovery copy that came with the accepted declaration."""
        return [id for (id,) in self._table("recovery")]

    def digest(self) -> dict[str, Any]:
        """All that lasts here: the ledger's tables, the identity, what it keeps, what it made."""
        ledger = {name: self._table(name) for (name,) in self._table("sqlite_master", "name")}
        kept = [self.state / name for name in ("identity", "blobs", "secrets")]
        return {"ledger": ledger, **look_of(self.place, self.targets, *kept)}

    def _table(self, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.state / 'ledger.db'}?mode=ro", uri=True)) as ledger:
            return ledger.execute(f"SELECT {columns} FROM {name} ORDER BY 1").fetchall()


class Mesh:
    """A control plane, and machines that join it."""

    def __init__(self, rabbit: Rabbit, ground: Path, stack: ExitStack) -> None:
        self.rabbit = rabbit
        self._ground = ground
        self._stack = stack
        self._file = carrying(BUNDLE, ground / "bundle")
        self._nothing = ground / "nothing"
        self._nothing.mkdir()
        self.founder = self.found("founder")

    def found(self, name: str) -> Founder:
        """A control plane with a store and a key of its own, serving. One at a time."""
        founder = Founder(self.rabbit, self._ground / name)
        self._stack.callback(founder.kill)
        founder.start()
        return founder

    def machine(self, name: str) -> Machine:
        """A fresh machine; in the end nothing is left of it."""
        machine = Machine(self._file, name, self._nothing)
        self._stack.callback(machine.remove)
        return machine

    def joined(self, name: str, **manner: float) -> tuple[Machine, Agent]:
        """A machine that has joined and reported, its agent running."""
        machine = self.machine(name)
        agent = machine.linked(self.founder.token(name), **manner)
        self.founder.wait_for_applied(name, 0)
        return machine, agent

    def accounts(self) -> frozenset[str]:
        return self.rabbit.account_names()

    def queues(self) -> dict[str, tuple[int, int]]:
        """Each queue's messages that wait, and those handed over and not acknowledged."""
        listed = self.rabbit.control(
            "list_queues", "name", "messages_ready", "messages_unacknowledged", "--no-table-headers"
        )
        lines = [line.split("\t") for line in listed.splitlines()]
        return {name: (int(ready), int(held)) for name, ready, held in lines}


def carrying(text: str, place: Path) -> Path:
    """A file that carries this bundle, and no code."""
    place.mkdir()
    (place / "bundle.toml").write_text(text)
    file = place.with_suffix(".agent")
    file.write_bytes(b"#!/bin/sh\n")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("build.json", json.dumps({"version": __version__, "commit": "", "id": ""}))
    bundle.pack(file, place, file)
    return file


@contextmanager
def mesh_of(rabbit: Rabbit, ground: Path) -> Iterator[Mesh]:
    """A mesh without nodes, for the block."""
    with ExitStack() as stack:
        yield Mesh(rabbit, ground, stack)


@contextmanager
def killed_at(founder: Founder, call: str, at: int) -> Iterator[None]:
    """For the block, a control plane is killed just before its `at`-th call of this kind from now on."""
    assert founder.process is not None
    process = subprocess.Popen([*tracer(call, at), "-p", str(founder.process.pid)], stderr=subprocess.DEVNULL)
    tasks = Path(f"/proc/{founder.process.pid}/task")
    try:
        wait_until(lambda: all(_tracer(task) == process.pid for task in tasks.iterdir()), SOON)
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            # It may wait for ever for a thread of what it has killed, which until then nobody can wait for.
            process.kill()
            process.wait()
        if founder.died():
            founder.process.wait(SOON)


def _tracer(task: Path) -> int:
    return int(status(task, "TracerPid"))


def declaration(node: str, serial: int, *items: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A declaration's fields, good unless they are replaced by others."""
    return {
        "type": "declaration/v1",
        "node": node,
        "serial": serial,
        "issued_at": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "resources": list(items),
        "recovery": [],
        **fields,
    }


def signed(data: bytes | Mapping[str, Any], key: SigningKey) -> bytes:
    """The envelope around a declaration."""
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return json.dumps(
        {
            "declaration": base64.b64encode(raw).decode("ascii"),
            "signature": base64.b64encode(key.sign(raw)).decode("ascii"),
        }
    ).encode()


def send(founder: Founder, node: str, body: bytes, **properties: Any) -> None:
    """Put a message into a node's queue, as another control plane would, or a mistaken one."""
    with Peer(founder.rabbit, "control", CONTROL_PASSWORD) as control:
        control.send(f"node.{node}", body, exchange="", **properties)


def refused(founder: Founder, node: str, body: bytes, **properties: Any) -> Refusal:
    """Send it to a node, and wait for the refusal that comes back."""
    sent = time.time()
    send(founder, node, body, **properties)
    detail = founder.wait_for(node, lambda detail: detail.refusal is not None and detail.refusal.at > sent)
    assert detail.refusal is not None
    return detail.refusal
