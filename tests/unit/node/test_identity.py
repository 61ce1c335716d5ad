from __future__ import annotations

import base64
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.envelope import verifies
from agent.errors import Fatal
from agent.node.identity import Identity, Membership, Role, Self
from agent.token import Token

MEMBERSHIP = Membership(
    broker="amqps://[2001:db8::1]:5671",
    fingerprints=("ab" * 32, "cd" * 32),
    account="node.a",
    password="geheim",
    queue="node.a",
    signers=(b"s" * 32, b"t" * 32),
    joined_by="0123",
)
TOKEN = Token("a", "amqps://10.0.0.1:5671", ("ab" * 32,), b"s" * 32, "geheim")


def no_random(size: int) -> bytes:
    raise AssertionError("nothing is to be made")


def test_before_the_first_up_there_is_nothing(ground: Path) -> None:
    identity = Identity(ground)
    assert identity.self() is None
    assert identity.membership() is None
    assert identity.token() is None
    identity.drop_token()
    assert list(ground.iterdir()) == []


@pytest.mark.parametrize("role", Role)
def test_what_was_decided_is_remembered(ground: Path, role: Role) -> None:
    decided = Self("a", role, {"broker_port": "5671", "motto": "${x} ☃ = \n"})
    Identity(ground).decide(decided)
    assert Identity(ground, no_random).self() == decided
    Identity(ground).decide(Self("b", role))
    assert Identity(ground).self() == Self("b", role)


def test_keys_are_made_once(ground: Path) -> None:
    made = iter([b"1" * 32, b"2" * 32])
    identity = Identity(ground, lambda size: next(made))
    key, node_key = identity.signing_key(), identity.node_key()
    assert node_key == b"2" * 32
    for again in (identity, Identity(ground, no_random)):
        assert again.signing_key().public == key.public
        assert again.node_key() == node_key
    assert verifies(key.public, b"x", Identity(ground, no_random).signing_key().sign(b"x"))


def test_without_a_source_of_its_own_keys_are_random(ground: Path) -> None:
    for name in ("a", "b"):
        (ground / name).mkdir()
    assert Identity(ground / "a").signing_key().seed != Identity(ground / "b").signing_key().seed
    assert Identity(ground / "a").node_key() != Identity(ground / "b").node_key()


def test_a_membership_is_kept_whole(ground: Path) -> None:
    Identity(ground).join(MEMBERSHIP)
    assert Identity(ground).membership() == MEMBERSHIP


def test_a_token_is_kept_until_it_has_done_its_work(ground: Path) -> None:
    identity = Identity(ground)
    identity.keep_token(TOKEN)
    assert Identity(ground).token() == TOKEN
    identity.drop_token()
    assert Identity(ground).token() is None


def fill(ground: Path) -> Identity:
    identity = Identity(ground)
    identity.decide(Self("a", Role.JOINER))
    identity.join(MEMBERSHIP)
    identity.keep_token(TOKEN)
    identity.signing_key()
    identity.node_key()
    return identity


def test_all_of_it_is_for_its_owner_alone(ground: Path) -> None:
    fill(ground)
    folder = ground / "identity"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    names = ("membership.json", "node.key", "self.json", "signing.seed", "token")
    assert modes == dict.fromkeys(names, 0o600)


def test_nothing_of_it_shows_a_secret_when_printed(ground: Path) -> None:
    identity = fill(ground)
    key = identity.signing_key()
    shown = repr([identity, key, identity.self(), identity.membership(), identity.token(), str(key), vars(identity)])
    secrets = ["geheim", key.seed.hex(), repr(key.seed)[2:-1], base64.b64encode(key.seed).decode()]
    assert [secret for secret in secrets if secret in shown] == []


DAMAGES: list[tuple[str, bytes, Callable[[Identity], object], str]] = [
    ("signing.seed", b"short", Identity.signing_key, "it has 5 bytes instead of 32.*reset"),
    ("signing.seed", b"", Identity.signing_key, "it has 0 bytes instead of 32.*reset"),
    ("node.key", b"x" * 33, Identity.node_key, "it has 33 bytes instead of 32.*reset"),
    ("self.json", b"", Identity.self, "not readable JSON.*reset"),
    ("self.json", b'{"name": "a", "role": "queen"}', Identity.self, "queen.*reset"),
    ("self.json", b'{"name": "a"}', Identity.self, "role: is missing.*reset"),
    ("membership.json", b"[]", Identity.membership, "not an object.*join again with a new token"),
    ("membership.json", b'{"broker": "\xff"}', Identity.membership, "not readable JSON.*join again with a new token"),
    ("token", b"mesh-join-1.abc.00000000\n", Identity.token, "cut or changed.*join again with a new one"),
    ("token", b"", Identity.token, "not a join token.*join again with a new one"),
    ("token", b"\xff\xfe", Identity.token, "not a join token.*join again with a new one"),
]


@pytest.mark.parametrize(("name", "content", "ask", "why"), DAMAGES)
def test_what_is_damaged_is_named_and_not_made_anew(
    ground: Path, name: str, content: bytes, ask: Callable[[Identity], object], why: str
) -> None:
    identity = fill(ground)
    path = ground / "identity" / name
    path.write_bytes(content)
    with pytest.raises(Fatal, match=rf"{path} is damaged \(.*{why}"):
        ask(identity)
    assert path.read_bytes() == content


def test_two_state_folders_are_two_identities(ground: Path) -> None:
    for name in ("a", "with space"):
        (ground / name).mkdir()
    Identity(ground / "a").decide(Self("a", Role.FOUNDER))
    Identity(ground / "with space").decide(Self("b", Role.JOINER))
    assert Identity(ground / "a").self() == Self("a", Role.FOUNDER)
    assert Identity(ground / "with space").self() == Self("b", Role.JOINER)


def test_a_counter_grows_and_is_never_used_twice_whatever_dies(tmp_path):
    used = []
    for _ in range(3):
        identity = Identity(tmp_path)  # as after a crash
        used.extend(identity.next_counter() for _ in range(1500))
    assert used == sorted(set(used))
    assert used[0] == 1


def test_a_counter_is_reserved_before_it_is_used(tmp_path):
    identity = Identity(tmp_path)
    first = identity.next_counter()
    kept = json.loads((tmp_path / "identity" / "counter").read_text())
    assert kept["reserved"] >= first


def test_a_damaged_counter_is_said(tmp_path):
    Identity(tmp_path).next_counter()
    (tmp_path / "identity" / "counter").write_text("{}")
    with pytest.raises(Fatal, match="counts anew"):
        Identity(tmp_path).next_counter()
