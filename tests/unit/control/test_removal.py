"""A node is forgotten whole, and nobody comes to refer to it meanwhile."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent.control.removal import remove_node
from agent.control.store import open_store
from agent.errors import Unavailable

NOW = 1_000_000.0


class Broker:
    """`Accounts` of a broker that does nothing but remember; `fails`: what it can't do."""

    def __init__(self, state: Path, fails: str = "") -> None:
        self.state = state
        self.fails = fails
        self.gone: list[str] = []

    def _forget(self, name: str) -> None:
        other = sqlite3.connect(self.state / "control" / "store.db", timeout=0)
        with closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        if name == self.fails:
            raise Unavailable("it is away")
        self.gone.append(name)

    def delete_account(self, account: str) -> None:
        self._forget(account)

    def delete_queue(self, queue: str) -> None:
        self._forget(f"queue {queue}")

    def _never(self, *_: object) -> bool:
        raise AssertionError

    ensure_topology = make_node = make_join = set_password = close_connections_of = has_queue = purge_queue = _never


def test_while_a_node_goes_nobody_changes_what_is_arranged(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    with closing(open_store(tmp_path, migrate=True)) as store:
        store.nodes.enrol("a", b"k" * 32, b"", {}, NOW)
        store.tokens.add("a", b"digest", "amqps://x:1", b"s", now=NOW, expires=NOW + 9)
        away = Broker(tmp_path, fails="queue node.a")
        with pytest.raises(Unavailable):
            remove_node(store, away, "a", founder="founder")
        assert store.nodes.names() == ("a",)
        broker = Broker(tmp_path)
        remove_node(store, broker, "a", founder="founder")
        assert (store.nodes.names(), store.tokens.live()) == ((), ())
    assert broker.gone == ["join.a", "node.a", "queue node.a"]
