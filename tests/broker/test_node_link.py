"""What a node makes of a broker that is away, still, short of memory, another's, or somebody else's already."""

from __future__ import annotations

import hashlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pika.exceptions
import pytest

from agent.envelope import SigningKey
from tests.broker.nodes import SOON, Agent, Founder, Machine, Mesh, declaration, mesh_of, refused, signed
from tests.broker.plane import Peer
from tests.broker.rabbit import Rabbit, wait_until

WORK = {"kind": "service", "name": "work", "command": ["/bin/sleep", "100000"]}


@pytest.fixture
def mesh(rabbit: Rabbit, ground: Path) -> Iterator[Mesh]:
    with mesh_of(rabbit, ground) as mesh:
        yield mesh


def at_work(mesh: Mesh, **manner: float) -> tuple[Machine, Agent, int]:
    """A node on which a service runs; the service's pid."""
    machine, agent = mesh.joined("b", **manner)
    mesh.founder.wait_for_applied("b", mesh.founder.declare_list("b", WORK))
    return machine, agent, machine.main_process("work")


def troubles(agent: Agent) -> list[str]:
    """What was said to be wrong with the link, in the order of saying."""
    return [line for line in agent.lines if line.startswith("no link to the mesh: ")]


def hears(founder: Founder) -> None:
    """Wait until something is heard of the node again."""
    seen = founder.detail("b").row.last_seen
    founder.wait_for("b", lambda detail: detail.row.last_seen != seen)


def assert_goes_on(mesh: Mesh, machine: Machine, agent: Agent, pid: int) -> None:
    """The link is up again, nothing was said twice, the service was left alone, and what is declared arrives."""
    wait_until(lambda: agent.output.count("connected to") == 2, SOON, lambda: agent.output)
    said = troubles(agent)
    assert len(said) == len(set(said)) > 0
    assert machine.main_process("work") == pid
    assert pid in machine.processes("work")
    mesh.founder.wait_for_applied("b", mesh.founder.declare_list("b", WORK, machine.a_file("next")))
    assert troubles(agent) == said
    assert machine.main_process("work") == pid


def test_a_broker_that_was_away_is_found_again(mesh: Mesh) -> None:
    machine, agent, pid = at_work(mesh)
    mesh.rabbit.stop()
    agent.wait_for("nothing listens at", SOON)
    mesh.rabbit.start()
    assert_goes_on(mesh, machine, agent, pid)


def test_a_broker_that_stands_still_is_noticed(mesh: Mesh) -> None:
    machine, agent, pid = at_work(mesh)
    mesh.rabbit.freeze()
    try:
        agent.wait_for("no link to the mesh", SOON)
        agent.wait_for("does not answer in time", SOON)
    finally:
        mesh.rabbit.thaw()
    assert_goes_on(mesh, machine, agent, pid)


def test_a_broker_short_of_memory_is_said_and_waited_for(mesh: Mesh) -> None:
    machine, agent, pid = at_work(mesh)
    mesh.rabbit.control("set_vm_memory_high_watermark", "0")
    try:
        agent.wait_for("takes no messages (low on memory); free memory or disk space there", SOON)
    finally:
        mesh.rabbit.control("set_vm_memory_high_watermark", "absolute", "512MB")
    assert_goes_on(mesh, machine, agent, pid)


def test_a_password_that_no_longer_works_touches_nothing(mesh: Mesh) -> None:
    machine, agent, pid = at_work(mesh)
    accounts = mesh.rabbit.accounts()
    accounts.set_password("node.b", "another")
    accounts.close_connections_of("node.b")
    agent.wait_for("does not know the account node.b with this password", SOON)
    (told,) = (line for line in troubles(agent) if "password" in line)
    assert "join again with a new token from `agent control token create`" in told
    accounts.set_password("node.b", machine.membership()["password"])
    assert_goes_on(mesh, machine, agent, pid)


def test_that_nothing_can_be_written_down_of_the_link_ends_nothing(mesh: Mesh) -> None:
    machine, agent = mesh.joined("b")
    assert agent.end() == 0
    (machine.state / "run" / "link.json").unlink()
    (machine.state / "run" / "link.json").mkdir()
    agent = machine.linked()
    mesh.rabbit.accounts().close_connections_of("node.b")
    wait_until(lambda: agent.output.count("connected to") == 2, SOON, lambda: agent.output)
    mesh.founder.wait_for_applied("b", mesh.founder.declare_list("b", machine.a_file("one")))
    assert (machine.state / "run" / "link.json").is_dir()


# Somebody else's


class Impostor:
    """A TLS server with a certificate of its own, which keeps what it is told."""

    def __init__(self, folder: Path) -> None:
        key, certificate = folder / "impostor.key", folder / "impostor.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=mesh", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        self.fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"amqps://127.0.0.1:{self._listener.getsockname()[1]}"
        self.told: list[bytes] = []

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, self._context.wrap_socket(connection, server_side=True) as session:
                try:
                    self.told.append(session.recv(1000))
                except OSError:
                    self.told.append(b"")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def impostor(folder: Path) -> Iterator[Impostor]:
    one = Impostor(folder)
    thread = threading.Thread(target=one.serve)
    thread.start()
    try:
        yield one
    finally:
        one.close()
        thread.join()


def test_another_certificate_is_told_nothing_and_shown(mesh: Mesh, ground: Path) -> None:
    machine = mesh.machine("b")
    with impostor(ground) as other:
        agent = machine.up(replace(mesh.founder.token("b"), broker=other.address))
        wait_until(lambda: len(other.told) >= 3, SOON)
        assert set(other.told) == {b""}
        (told,) = troubles(agent)
    assert f"shows the certificate {other.fingerprint}, which is none of those pinned here" in told
    assert "nothing was sent to it" in told


def test_of_two_machines_with_one_identity_the_second_says_so_and_waits(mesh: Mesh) -> None:
    first, agent = mesh.joined("b")
    assert agent.end() == 0
    second = mesh.machine("b")
    shutil.copytree(first.state, second.state, dirs_exist_ok=True)
    agent = first.linked()
    rival = second.up(in_use_retry=0.2, in_use_said_after=1.0)
    said = "another machine holds this identity (node.b): it consumes the same queue"
    rival.wait_for(said, SOON)
    mesh.founder.wait_for_applied("b", mesh.founder.declare_list("b", first.a_file("one")))
    assert "connected to" not in rival.output
    assert agent.output.count("connected to") == 1
    assert agent.end() == 0
    rival.wait_for("waiting for declarations", SOON)
    assert rival.output.count(said) == 1


# Long work


def slow(machine: Machine, name: str) -> dict[str, object]:
    """A service that is ready once the test says so."""
    ready = {"file": str(machine.folder / f"{name}.ready"), "timeout": 120}
    return {"kind": "service", "name": name, "command": ["/bin/sleep", "100000"], "ready": ready}


def test_a_long_apply_keeps_the_link_and_the_newest_list_wins(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, agent = mesh.joined("b", heartbeat=1)
    first = founder.declare_list("b", slow(machine, "one"))
    wait_until(lambda: bool(machine.processes("one")), SOON)
    for _ in range(4):  # more than two heartbeats
        hears(founder)
    assert mesh.queues()["node.b"] == (0, 0)
    founder.declare_list("b", slow(machine, "one"), machine.a_file("never"))
    newest = founder.declare_list("b", slow(machine, "one"), slow(machine, "two"))
    agent.wait_for(f"accepted declaration {newest}", SOON)
    (machine.folder / "one.ready").touch()
    wait_until(lambda: bool(machine.processes("two")), SOON)
    for _ in range(2):
        hears(founder)
    assert founder.detail("b").row.applied == 0  # what was accepted later is not there yet
    (machine.folder / "two.ready").touch()
    founder.wait_for_applied("b", newest)
    assert founder.detail("b").holdings == ("service:one", "service:two")
    assert not (machine.targets / "never").exists()
    assert agent.output.count("accepted declaration") == newest - first + 1
    assert (agent.output.count("connected to"), troubles(agent)) == (1, [])
    assert mesh.queues()["node.b"] == (0, 0)


# Joining again


def test_joining_the_same_mesh_again_keeps_the_serial_and_ends_the_old_login(mesh: Mesh) -> None:
    founder = mesh.founder
    machine, agent = mesh.joined("b")
    for content in ("1", "2"):
        serial = founder.declare_list("b", machine.a_file("one", content))
    founder.wait_for_applied("b", serial)
    assert agent.end() == 0
    before = machine.membership()
    agent = machine.linked(founder.token("b"))
    assert "enrolled as b" in agent.output
    hears(founder)
    assert machine.membership()["password"] != before["password"]
    with pytest.raises(pika.exceptions.ProbableAuthenticationError), Peer(mesh.rabbit, "node.b", before["password"]):
        pass
    refusal = refused(mesh.founder, "b", signed(declaration("b", 1, machine.a_file("two")), founder.key))
    assert "serial 1 is lower than 2" in refusal.why
    assert founder.detail("b").holdings == (machine.id("one"),)
    founder.wait_for_applied("b", founder.declare_list("b", machine.a_file("two")))
    assert [path.name for path in machine.targets.iterdir()] == ["two"]


def test_joining_another_mesh_begins_its_serials_anew_and_believes_nobody_else(mesh: Mesh) -> None:
    machine, agent = mesh.joined("b")
    old = mesh.founder
    for content in ("1", "2"):
        serial = old.declare_list("b", machine.a_file("one", content))
    old.wait_for_applied("b", serial)
    assert agent.end() == 0
    old.stop()
    other = mesh.found("other")
    assert other.key.public != old.key.public
    machine.linked(other.token("b"))
    other.wait_for_applied("b", 0)
    assert (machine.targets / "one").read_text() == "2"
    for key in (old.key, SigningKey(b"s" * 32)):
        assert "does not verify" in refused(other, "b", signed(declaration("b", 9), key)).why
    assert other.declare_list("b", machine.a_file("two")) == 1
    other.wait_for_applied("b", 1)
    assert [path.name for path in machine.targets.iterdir()] == ["two"]
    assert other.detail("b").holdings == (machine.id("two"),)
