"""The broker's certificate is renewed: nobody is locked out, or is named beforehand."""

from __future__ import annotations

import hashlib
import ssl

import pytest

from tests.broker.nodes import SOON, Founder, mesh_of
from tests.broker.plane import write_settings
from tests.broker.rabbit import Rabbit, wait_until


@pytest.fixture
def rabbit():
    """A broker of this test's own, whose certificate lies in the founder's state folder."""
    rabbit = Rabbit()
    try:
        rabbit.start()
        yield rabbit
    finally:
        rabbit.remove()


def shown(rabbit):
    path = rabbit.state / "secrets" / "rabbitmq" / "broker.crt"
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(path.read_text())).hexdigest()


def restart_with_what_is_there(rabbit, founder):
    """What the founder's agent does, which sees other files: broker and control plane start anew."""
    founder.stop()
    rabbit.stop()
    rabbit.fingerprint = shown(rabbit)
    rabbit.start()
    write_settings(rabbit, founder.state)
    founder.start()


@pytest.fixture
def mesh(rabbit):
    """A mesh whose founder has the broker's certificate."""
    with mesh_of(rabbit, rabbit.folder) as mesh:
        mesh.founder.stop()
        mesh.founder = mesh.found(rabbit.state.name)
        assert mesh.founder.state == rabbit.state
        yield mesh


def test_every_node_knows_the_next_certificate_before_it_is_shown(rabbit, mesh):
    founder = mesh.founder
    machine, agent = mesh.joined("a")
    founder.wait_for_applied("a", founder.declare_list("a", machine.a_file("one")))
    late, late_agent = mesh.joined("late")
    assert late_agent.end() == 0
    before = shown(rabbit)
    founder.token("early")

    refused = founder.ask("cert", "renew", "--timeout", "1")
    assert refused.returncode == 2, refused.stderr
    assert "not swapped: late would be locked out" in refused.stderr
    assert "and the token for early is older than the next certificate" in refused.stderr
    assert shown(rabbit) == before
    assert len(founder.token("new").fingerprints) == 2

    late.linked()
    founder.token("early")
    done = founder.ask("cert", "renew", "--timeout", "50")
    assert done.returncode == 0, done.stderr
    assert shown(rabbit) != before
    assert [path.name for path in (rabbit.state / "secrets" / "rabbitmq").glob("*.crt")] == ["broker.crt"]
    # The broker reads it by itself within minutes, maybe before the agent restarts it.
    rabbit.control("eval", "ssl:clear_pem_cache().")
    assert len(founder.token("new").fingerprints) == 2
    rabbit.control("close_all_connections", "a test")
    founder.wait_for_applied("a", founder.declare_list("a", machine.a_file("zero")))
    again = founder.ask("cert", "renew")
    assert again.returncode == 1
    assert "in its place already" in again.stderr
    assert founder.ask("backup", str(rabbit.folder / "backup")).returncode == 0
    restart_with_what_is_there(rabbit, founder)
    assert rabbit.fingerprint != before
    told = founder.declare_list("a", machine.a_file("one"), machine.a_file("two"))
    founder.wait_for_applied("a", told)
    assert founder.wanted("a")["trust"]["fingerprints"] == [rabbit.fingerprint]
    founder.wait_for("late", lambda detail: detail.row.applied == detail.row.wanted)
    wait_until(lambda: machine.membership()["fingerprints"] == [rabbit.fingerprint], SOON)
    assert founder.token("other").fingerprints == (rabbit.fingerprint,)
    assert "refused" not in agent.output


def test_who_does_not_know_it_is_locked_out_only_by_force(rabbit, mesh):
    founder = mesh.founder
    machine, agent = mesh.joined("a")
    assert agent.end() == 0
    done = founder.ask("cert", "renew", "--force")
    assert done.returncode == 0, done.stderr
    assert "a must join again" in done.stdout
    restart_with_what_is_there(rabbit, founder)
    agent = machine.up()
    agent.wait_for("none of those pinned", SOON)
    assert agent.end() == 0
    machine.linked(founder.token("a"))
    founder.wait_for_applied("a", founder.declare_list("a", machine.a_file("one")))


def test_a_certificate_that_is_not_here_is_another_s_to_renew(rabbit, ground):
    founder = Founder(rabbit, ground)
    try:
        founder.start()
        refused = founder.ask("cert", "renew")
        assert refused.returncode == 1
        assert "No certificate below" in refused.stderr
    finally:
        founder.kill()
