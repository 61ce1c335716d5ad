"""Signing keys that follow each other: each node is signed for with the newest one it has confirmed."""

from __future__ import annotations

import base64
import shutil

import pytest

from agent.control.accounts import Bounds, BrokerAccounts
from agent.control.renewal import Unaware
from agent.control.signing import read_keyring
from agent.envelope import SigningKey, verifies
from agent.errors import Refused, Unavailable
from tests.broker.nodes import SOON, mesh_of
from tests.broker.plane import serving
from tests.broker.rabbit import wait_until


@pytest.fixture
def plane(rabbit, ground):
    with serving(rabbit, ground) as plane:
        yield plane


def publics(plane):
    with plane.control() as control:
        rows = control.keys()
    return [row.public_key for row in rows]


def rotate(plane):
    with plane.control() as control:
        return control.rotate_key()


def retire(plane, number, **options):
    with plane.control() as control:
        control.retire_key(number, **options)


def tokens(plane):
    with plane.control() as control:
        return [token.node for token in control.tokens()]


class Away(BrokerAccounts):
    """A broker that is away when an account is to go."""

    def delete_account(self, account):
        raise Unavailable("it is away")


def signed_by(declaration, keys):
    """The number of the key that a declaration is signed with, and the numbers of those it says to trust."""
    numbers = {key: at for at, key in enumerate(keys, 1)}
    by = [at for key, at in numbers.items() if verifies(key, declaration.data, declaration.signature)]
    told = [numbers[base64.b64decode(key)] for key in declaration.says["trust"]["signers"]]
    return by, told


def test_each_node_hears_of_the_next_key_from_one_it_knows(plane):
    with plane.join("a") as a, plane.join("b") as b:
        plane.declare("a", "/etc/x")
        assert "trust" not in a.declaration().says
        a.report(1, applied=["file:/etc/x"])
        b.report(0)
        plane.wait_for("b", lambda detail: detail.row.applied == 0)
        plane.wait_for("a", lambda detail: detail.row.applied == 1)
        assert rotate(plane) == 2
        keys = publics(plane)
        told = a.declaration()
        assert (told.serial, signed_by(told, keys)) == (2, ([1], [1, 2]))
        assert [item["name"] for item in told.says["resources"]] == ["/etc/x"]
        assert signed_by(b.declaration(), keys) == ([1], [1, 2])
        a.report(2, applied=["file:/etc/x"])
        plane.wait_for("a", lambda detail: detail.row.applied == 2)
        for name, node, key in (("a", a, 2), ("b", b, 1)):
            plane.declare(name, "/etc/y")
            assert signed_by(node.declaration(), keys) == ([key], [1, 2])
        # b was away for another rotation too.
        assert rotate(plane) == 3
        keys = publics(plane)
        assert signed_by(b.declaration(), keys) == ([1], [1, 2, 3])
        assert signed_by(a.declaration(), keys) == ([2], [1, 2, 3])


def test_a_key_that_is_needed_is_not_retired(plane):
    with plane.join("a") as a, plane.join("b") as b:
        for node in (a, b):
            node.report(0)
            plane.wait_for(node.name, lambda detail: detail.row.applied == 0)
        plane.token("c")
        rotate(plane)
        a.declaration()
        a.report(1)
        plane.wait_for("a", lambda detail: detail.row.applied == 1)
        with pytest.raises(Refused, match="needed by b, the token for c"):
            retire(plane, 1)
        with pytest.raises(Refused, match="newest"):
            retire(plane, 2)
        with pytest.raises(Refused, match="no key 7"):
            retire(plane, 7)
        b.declaration()
        b.report(1)
        plane.wait_for("b", lambda detail: detail.row.applied == 1)
        with pytest.raises(Refused, match="needed by the token for"):
            retire(plane, 1)
        away = plane.control(accounts_for=lambda settings: Away(plane.rabbit.management, Bounds()))
        with away as control, pytest.raises(Unavailable):
            control.retire_key(1, force=True)
        assert "c" in tokens(plane)  # nothing was done of it
        assert a.has_nothing()
        retire(plane, 1, force=True)
        keys = publics(plane)
        assert signed_by(a.declaration(), keys) == ([2], [2])
        assert signed_by(b.declaration(), keys) == ([2], [2])
        with pytest.raises(Refused, match="no key 1"):
            retire(plane, 1)
        assert "c" not in tokens(plane)
    assert [path.name for path in (plane.state / "control" / "keys").iterdir()] == ["2.seed"]
    with plane.newcomer("d") as newcomer:
        assert newcomer.token.signer == keys[1]


def test_a_node_that_lost_what_it_was_told_is_signed_for_as_it_joined(plane):
    with plane.join("a") as a:
        a.report(0)
        plane.wait_for("a", lambda detail: detail.row.applied == 0)
        rotate(plane)
        a.declaration()
        a.report(1)
        plane.wait_for("a", lambda detail: detail.row.applied == 1)
        plane.declare("a", "/etc/x")
        keys = publics(plane)
        assert signed_by(a.declaration(), keys) == ([2], [1, 2])
        a.report(0)
        again = a.declaration()
        assert (again.serial, signed_by(again, keys)) == (3, ([1], [1, 2]))


def test_a_token_that_is_older_than_a_key_leads_to_it(plane):
    with plane.newcomer("a") as newcomer, plane.newcomer("b") as other:
        rotate(plane)
        keys = publics(plane)
        for one in (newcomer, other):
            with one.node(one.enrol()) as node:
                node.report(0)
                told = node.declaration()
                assert (told.serial, told.says["resources"], signed_by(told, keys)) == (1, [], ([1], [1, 2]))
                node.report(1)
                plane.wait_for(node.name, lambda detail: detail.row.applied == 1)
    with plane.control() as control:
        assert control.keys()[0].nodes == ()


def test_who_joins_again_with_an_older_token_knows_no_more_than_that_says(plane):
    with plane.join("a") as a:
        plane.declare("a", "/etc/x")
        a.declaration()
        a.report(1, applied=["file:/etc/x"])
        plane.wait_for("a", lambda detail: detail.row.applied == 1)
        newcomer = plane.newcomer("a", a.key)
        rotate(plane)
        keys = publics(plane)
        assert signed_by(a.declaration(), keys) == ([1], [1, 2])
        a.report(2, applied=["file:/etc/x"])
        plane.wait_for("a", lambda detail: detail.row.applied == 2)
    with newcomer, newcomer.node(newcomer.enrol()) as a:
        a.report(2, applied=["file:/etc/x"], carried=[80])
        plane.wait_for("a", lambda detail: detail.carried == (80,))
        told = a.declaration()
        assert (told.serial, signed_by(told, keys)) == (3, ([1], [1, 2]))
        plane.declare("a", "/etc/y")
        assert signed_by(a.declaration(), keys) == ([1], [1, 2])
        a.report(4, applied=["file:/etc/y"])
        plane.wait_for("a", lambda detail: detail.row.applied == 4)
        plane.declare("a", "/etc/z")
        assert signed_by(a.declaration(), keys) == ([2], [1, 2])


def test_who_joins_again_with_an_older_token_does_not_know_the_next_certificate(rabbit, plane):
    shutil.copytree(rabbit.state / "secrets", plane.state / "secrets")
    with plane.join("a") as a, plane.control() as control:
        a.report(0)
        plane.wait_for("a", lambda detail: detail.row.applied == 0)
        newcomer = plane.newcomer("a", a.key)
        pin = control.begin_renewal()
        assert a.declaration().says["trust"]["fingerprints"] == [rabbit.fingerprint, pin]
        a.report(1)
        wait_until(lambda: control.unaware_of(pin) == Unaware((), ("a",)), 20)
        with newcomer, newcomer.node(newcomer.enrol()) as a:
            a.report(1, carried=[80])
            plane.wait_for("a", lambda detail: detail.carried == (80,))
            assert control.unaware_of(pin) == Unaware(("a",), ())
            assert a.declaration().says["trust"]["fingerprints"] == [rabbit.fingerprint, pin]
            a.report(2)
            wait_until(lambda: not control.unaware_of(pin), 20)


def test_a_rotation_is_whole_or_not_at_all(plane):
    with plane.join("a") as a:
        a.report(0)
        plane.wait_for("a", lambda detail: detail.row.applied == 0)
        (plane.state / "control" / "keys" / "1.seed").rename(plane.state / "kept")
        with pytest.raises(Refused, match=r"1\.seed is lost"):
            rotate(plane)
        (plane.state / "kept").rename(plane.state / "control" / "keys" / "1.seed")
        store = plane.control()._store
        assert len(store.signers.all()) == 1
        assert isinstance(read_keyring(plane.state, store).newest, SigningKey)
        assert a.has_nothing()


def test_nodes_follow_a_rotation_and_a_retirement(rabbit, ground):
    with mesh_of(rabbit, ground) as mesh:
        founder = mesh.founder
        machine, _ = mesh.joined("a")
        founder.wait_for_applied("a", founder.declare_list("a", machine.a_file("one")))
        late, late_agent = mesh.joined("late")
        assert late_agent.end() == 0
        assert founder.ask("key", "rotate").returncode == 0
        founder.wait_for_applied("a", 2)
        refused = founder.ask("key", "retire", "1")
        assert refused.returncode == 1
        assert "needed by late" in refused.stderr
        late.linked()
        founder.wait_for_applied("late", 1)
        # The founder's own token is soon another one, which names the new key.
        wait_until(lambda: founder.ask("key", "retire", "1").returncode == 0, SOON)
        founder.wait_for_applied("a", 3)
        founder.wait_for_applied("late", 2)
        founder.wait_for_applied("a", founder.declare_list("a", machine.a_file("two")))
        wait_until(lambda: [path.name for path in machine.targets.iterdir()] == ["two"], SOON)
        assert "retired" in founder.ask("key", "list").stdout
        # Its ledger is gone, and what it was told of the keys is not.
        for path in late.state.glob("ledger.db*"):
            late._agents[-1].kill()
            path.unlink()
        late.linked()
        founder.wait_for_applied("late", founder.declare_list("late", late.a_file("one")))


def test_who_holds_what_this_control_plane_never_declared_loses_nothing_by_a_rotation(rabbit, ground):
    with mesh_of(rabbit, ground) as mesh:
        founder = mesh.founder
        machine, agent = mesh.joined("a")
        founder.wait_for_applied("a", founder.declare_list("a", machine.a_file("one")))
        assert founder.ask("node", "remove", "a").returncode == 0
        assert agent.end() == 0
        with founder.control() as control:
            token = control.create_token("a")  # as for a new name
        machine.linked(token)
        founder.wait_for_applied("a", 1)
        assert founder.ask("key", "rotate").returncode == 0
        detail = founder.wait_for("a", lambda detail: detail.refusal is not None)
        assert "an empty list would remove 1 assigned resources" in detail.row.refusal
        assert [path.name for path in machine.targets.iterdir()] == ["one"]
        # What it is declared then tells it of the keys as well.
        founder.wait_for_applied("a", founder.declare_list("a", machine.a_file("two")))
        assert [path.name for path in machine.targets.iterdir()] == ["two"]
        # The founder's own token is soon another one, which names the new key.
        wait_until(lambda: founder.ask("key", "retire", "1").returncode == 0, SOON)
