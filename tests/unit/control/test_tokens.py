"""A token that is shown works, whatever else happens to its name while it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.control.enrolment import secret_digest
from agent.control.store import Store, open_store
from agent.control.tokens import Site, create_token
from agent.errors import Unavailable
from agent.token import Token

NOW = 1_000_000.0
SITE = Site("amqps://x:1", ("a" * 64,), b"s" * 32)


class Broker:
    """`Accounts` of a broker that remembers the password of each account for a token."""

    def __init__(self) -> None:
        self.passwords: dict[str, str] = {}

    def make_join(self, name: str, password: str) -> None:
        self.passwords[name] = password

    def _never(self, *_: object) -> bool:
        raise AssertionError

    ensure_topology = make_node = set_password = close_connections_of = has_queue = purge_queue = _never
    delete_account = delete_queue = _never


class Interrupted(Store):
    """A store whose next transaction begins after `before` has happened."""

    before: Callable[[], object] = staticmethod(lambda: None)

    def transaction(self):  # type: ignore[no-untyped-def]
        before, self.before = self.before, lambda: None
        before()
        return super().transaction()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Interrupted]:
    (tmp_path / "control").mkdir()
    with closing(open_store(tmp_path, migrate=True)) as store:
        yield Interrupted(store._database)


def make(store: Store, broker: Broker, secret: bytes) -> Token:
    return create_token(
        store, broker, SITE, "a", lifetime=60, replace=True, now=NOW, random=lambda count: secret * count
    )


def test_one_that_was_ended_while_it_was_made_is_not_shown(store: Interrupted) -> None:
    broker = Broker()
    store.before = lambda: store.tokens.forget_all("a")
    with pytest.raises(Unavailable, match="make another"):
        make(store, broker, b"1")
    assert broker.passwords == {}


def test_of_two_that_are_made_at_once_the_one_that_counts_is_the_accounts(store: Interrupted) -> None:
    broker, other = Broker(), []
    store.before = lambda: other.append(make(store, broker, b"2"))
    with pytest.raises(Unavailable, match="make another"):
        make(store, broker, b"1")
    (token,) = store.tokens.live()
    assert token.digest == secret_digest(other[0].secret)
    assert broker.passwords == {"a": other[0].secret}
