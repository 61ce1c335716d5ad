"""Joining, interrupted at each step on each side by a kill and then gone on with: once, and nobody is locked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.envelope import SigningKey
from agent.node import enrolment
from agent.node.identity import Identity, Membership
from agent.token import Token
from tests.broker.nodes import SOON, Agent, Machine, Mesh, killed_at, mesh_of
from tests.broker.plane import REFUSAL, Newcomer
from tests.broker.rabbit import Rabbit, wait_until
from tests.killing import killing

# More often than any of the system calls below is made on the way.
MANY = 200
# So that an alive is none of what is interrupted, but for the first.
SELDOM = 60.0


@pytest.fixture
def mesh(rabbit: Rabbit, ground: Path) -> Iterator[Mesh]:
    with mesh_of(rabbit, ground) as mesh:
        yield mesh


def has_reported(mesh: Mesh, name: str) -> bool:
    return mesh.founder.knows(name) and mesh.founder.detail(name).row.applied is not None


def assert_joined_once(mesh: Mesh, machines: Sequence[Machine]) -> None:
    """Each is a node, with its own key, an account and a queue; no token is left, and nothing was parked."""
    founder, names = mesh.founder, sorted(machine.name for machine in machines)
    assert [row.name for row in founder.mesh().nodes] == names
    for machine in machines:
        assert founder.detail(machine.name).public_key == machine.key.public
        assert not (machine.state / "identity" / "token").exists()
    own = {f"node.{name}" for name in names}
    wait_until(lambda: mesh.accounts() == {"control", "join.founder", *own}, SOON, lambda: str(mesh.accounts()))
    assert set(mesh.queues()) == {"control", "control.parked", *own}
    assert founder.mesh().parked == 0, founder.log.read_text()


def until_through(attempt: Callable[[int], bool], first: int, step: int) -> None:
    """Interrupt earlier, then later and later, two at a time, until an attempt gets through."""
    with ThreadPoolExecutor(2) as pool:
        for at in range(first, MANY, 2 * step):
            if any(list(pool.map(attempt, (at, at + step)))):
                return
    raise AssertionError("none got through")


# What changes something that lasts on the node, or that the broker is told: files put in their places, the token
# removed, what is written to the network. The first calls are made before there is anything to join with.
@pytest.mark.parametrize(("call", "first", "step"), [("renameat", 1, 1), ("unlinkat", 7, 1), ("write", 12, 3)])
def test_a_node_that_is_killed_on_its_way_joins_once(mesh: Mesh, call: str, first: int, step: int) -> None:
    machines: list[Machine] = []

    def interrupted(at: int) -> bool:
        machine = mesh.machine(f"n{at}")
        machines.append(machine)
        token = mesh.founder.token(machine.name)
        agent = machine.up(token, before=killing(call, at), alive_interval=SELDOM)
        wait_until(
            lambda: agent.process.poll() is not None or has_reported(mesh, machine.name), SOON, lambda: agent.output
        )
        through = agent.process.poll() is None
        machine.end_agents()
        # Whoever repeats it may give the token again; where it was kept, that isn't needed.
        machine.linked(None if at % 2 and machine.knows_whom_to_join() else token, alive_interval=SELDOM)
        wait_until(lambda: has_reported(mesh, machine.name), SOON)
        machine.end_agents()
        return through

    until_through(interrupted, first, step)
    assert_joined_once(mesh, machines)


# What it asks of the broker's management and by which it answers; what it commits; all that it writes.
@pytest.mark.parametrize(("call", "step"), [("connect", 2), ("fdatasync", 1), ("write", 15)])
def test_a_control_plane_that_is_killed_on_the_way_lets_a_node_join_once(mesh: Mesh, call: str, step: int) -> None:
    machines: list[Machine] = []
    for at in range(1, MANY, step):
        machine = mesh.machine(f"n{at}")
        machines.append(machine)
        token = mesh.founder.token(machine.name)
        with killed_at(mesh.founder, call, at):
            agent = machine.up(token, alive_interval=SELDOM)
            wait_until(lambda: mesh.founder.died() or has_settled(mesh, machine), SOON, lambda: agent.output)  # noqa: B023
        through = not mesh.founder.died()
        if not through:
            mesh.founder.start()
        wait_until(lambda: has_reported(mesh, machine.name), SOON, lambda: agent.output)  # noqa: B023
        assert agent.output.count("enrolled as") == 1
        machine.end_agents()
        if through:
            break
    else:
        raise AssertionError("it never got through")
    assert_joined_once(mesh, machines)


def has_settled(mesh: Mesh, machine: Machine) -> bool:
    """Whether all that follows from joining is over."""
    return has_reported(mesh, machine.name) and f"join.{machine.name}" not in mesh.accounts()


def test_joining_again_may_be_interrupted_again_and_again(mesh: Mesh) -> None:
    machine, _ = mesh.joined("b")
    for content in ("1", "2"):
        serial = mesh.founder.declare_list("b", machine.a_file("one", content))
    mesh.founder.wait_for_applied("b", serial)
    machine.end_agents()
    mesh.founder.stop()
    mesh.founder = mesh.found("other")
    token = mesh.founder.token("b")
    for call in ("renameat", "fdatasync"):
        for at in range(1, 4):
            agent = machine.up(token, before=killing(call, at))
            wait_until(lambda: agent.process.poll() is not None or has_reported(mesh, "b"), SOON)  # noqa: B023
            machine.end_agents()
    machine.linked(token)
    mesh.founder.wait_for_applied("b", 0)
    mesh.founder.wait_for_applied("b", mesh.founder.declare_list("b", machine.a_file("two")))
    assert [path.name for path in machine.targets.iterdir()] == ["two"]
    assert_joined_once(mesh, [machine])


def test_credentials_that_never_worked_are_asked_for_again(mesh: Mesh) -> None:
    machine = mesh.machine("b")
    token = mesh.founder.token("b")
    identity = Identity(machine.state)
    with Newcomer(mesh.rabbit, token, identity.signing_key()) as newcomer:
        password = newcomer.enrol()["password"]
    lost = "one that was never made true"
    queue = "node.b"
    identity.join(
        Membership(token.broker, token.fingerprints, queue, lost, queue, (token.signer,), enrolment.joined_by(token))
    )
    agent = machine.linked(token)
    assert "no link to the mesh" not in agent.output
    assert machine.membership()["password"] == password
    wait_until(lambda: has_reported(mesh, "b"), SOON)
    assert_joined_once(mesh, [machine])


def test_who_has_lost_how_it_logged_in_believes_its_new_token(mesh: Mesh) -> None:
    machine, agent = mesh.joined("b")
    first = mesh.founder
    assert first.ask("key", "rotate").returncode == 0
    first.wait_for_applied("b", 1)
    first.wait_for_applied("b", first.declare_list("b", machine.a_file("one")))
    assert agent.end() == 0
    first.stop()
    (machine.state / "identity" / "membership.json").unlink()
    mesh.rabbit.clear()
    second = mesh.founder = mesh.found("second")  # with keys of which the ledger says nothing
    agent = machine.linked(second.token("b"))
    second.wait_for_applied("b", second.declare_list("b", machine.a_file("two")))
    assert [path.name for path in machine.targets.iterdir()] == ["two"]
    assert "refused" not in agent.output


# One token, several holders


def ends(agents: Sequence[Agent]) -> tuple[list[Agent], list[Agent]]:
    """Those whose link came up, and those who were told no."""
    up = [agent for agent in agents if "waiting for declarations" in agent.output]
    told = [agent for agent in agents if REFUSAL in agent.output]
    return up, told


def test_of_two_machines_with_one_token_at_once_exactly_one_joins(mesh: Mesh) -> None:
    token = mesh.founder.token("b")
    machines = [mesh.machine("b"), mesh.machine("b")]
    agents = [machine.up(token) for machine in machines]
    wait_until(
        lambda: [len(some) for some in ends(agents)] == [1, 1], SOON, lambda: agents[0].output + agents[1].output
    )
    winner = machines[agents.index(ends(agents)[0][0])]
    mesh.founder.wait_for_applied("b", mesh.founder.declare_list("b", winner.a_file("one")))
    assert [list(machine.targets.iterdir()) for machine in machines if machine is not winner] == [[]]
    assert_joined_once(mesh, [winner])


def test_who_listens_with_the_same_token_hears_nothing_and_is_cut_off(mesh: Mesh) -> None:
    token = mesh.founder.token("b")
    with Newcomer(mesh.rabbit, token, SigningKey(b"t" * 32)) as thief:
        replies: list[bytes] = []
        thief.channel.basic_consume(
            "amq.rabbitmq.reply-to", lambda _c, _m, _p, body: replies.append(body), auto_ack=True
        )
        machine = mesh.machine("b")
        machine.linked(token)
        wait_until(thief.is_cut_off, SOON)
        assert replies == []
    assert_joined_once(mesh, [machine])


def test_a_token_that_was_spent_lets_nobody_else_in(mesh: Mesh) -> None:
    token: Token = mesh.founder.token("b")
    with Newcomer(mesh.rabbit, token, SigningKey(b"f" * 32)) as first:
        assert first.enrol()["accepted"]
        refused = (
            f"the mesh refused to let this machine join: {REFUSAL}; make another with `agent control token create b`"
        )
        late = mesh.machine("b").up(token)
        late.wait_for(refused, SOON)
        assert mesh.founder.ask("token", "revoke", "b").returncode == 0
        # Which the broker refuses before the control plane can.
        assert not mesh.rabbit.account_names() & {token.account}
        later = mesh.machine("b").up(token)
        later.wait_for(refused, SOON)
    assert mesh.founder.detail("b").public_key == first.key.public
