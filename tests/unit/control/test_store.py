"""The store keeps what it is given, across a close, and lets only its own version in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from agent.control.enrolment import Spending
from agent.control.registry import Refusal
from agent.control.statements import Speaker
from agent.control.store import MeshSecret, Signer, Store, Wanted, open_store
from agent.control.store.store import _MIGRATIONS
from agent.database import open_database
from agent.errors import Refused

NOW = 1_000_000.0
SPENDING = Spending(b"k" * 32, "password", b"digest")


@pytest.fixture
def state(tmp_path):
    (tmp_path / "control").mkdir()
    return tmp_path


@pytest.fixture
def store(state) -> Iterator[Store]:
    with closing(open_store(state, migrate=True)) as store:
        yield store


def enrol(store, name="a"):
    store.nodes.enrol(name, b"k" * 32, b"", {"arch": "x86_64"}, NOW)
    return store.nodes.get(name)


def add_token(store, node="a", digest=b"d", expires=NOW + 60):
    return store.tokens.add(node, digest, "amqps://10.0.0.1:5671", b"s" * 32, now=NOW, expires=expires)


def declare(store, serial, ids=(), node="a"):
    store.declarations.add(Wanted(node, serial, b"data%d" % serial, b"signature", NOW + serial), b"s" * 32, ids)


def test_only_who_migrates_makes_a_store(state):
    with pytest.raises(Refused):
        open_store(state)
    open_store(state, migrate=True).close()
    open_store(state).close()
    assert (state / "control" / "store.db").stat().st_mode & 0o777 == 0o600


def test_a_newer_store_is_refused_in_words(state):
    with closing(open_store(state, migrate=True)) as store:
        store._database.execute("PRAGMA user_version = 99")
    with pytest.raises(Refused, match="schema 99"):
        open_store(state, migrate=True)


def test_a_node_comes_back_as_it_was_saved(store, state):
    node = enrol(store)
    saved = replace(
        node,
        version="1.2",
        last_seen=NOW,
        reported=2**52,
        reported_at=NOW,
        holdings=("file:/ä", "web"),
        holdings_serial=4,
        carried=(80, 443),
        failures={"web": "no “engine”"},
        counter=2**63 - 1,
        refusal=Refusal("no", None, NOW),
    )
    store.nodes.save(saved)
    with closing(open_store(state)) as other:
        assert other.nodes.get("a") == saved
        assert other.nodes.all() == (saved,)
    assert store.nodes.get("ab") is None


def test_joining_again_keeps_what_the_node_said(store):
    store.nodes.save(replace(enrol(store), last_seen=NOW, reported=3, holdings=("web",), carried=(80,)))
    declare(store, 3, ["web"])
    store.nodes.enrol("a", b"n" * 32, b"o" * 32, {}, NOW + 9)
    node = store.nodes.get("a")
    assert (node.public_key, node.overlay_key, node.profile, node.enrolled) == (b"n" * 32, b"o" * 32, {}, NOW + 9)
    assert (node.last_seen, node.reported, node.wanted, node.holdings, node.carried) == (NOW, 3, 3, ("web",), (80,))


def test_touching_moves_last_seen_forward_only(store):
    enrol(store)
    store.nodes.touch("a", 7, -3.5, NOW)
    store.nodes.touch("a", 8, None, NOW - 9)
    node = store.nodes.get("a")
    assert (node.last_seen, node.counter, node.clock_offset) == (NOW, 8, None)
    assert store.nodes.speaker("a") == Speaker(b"k" * 32, 8)
    assert store.nodes.speaker("nobody") is None


def test_joining_again_counts_statements_anew(store):
    store.nodes.save(replace(enrol(store), counter=9))
    enrol(store)
    assert store.nodes.get("a").counter == 0


def test_another_machine_in_a_nodes_place_has_said_nothing_yet(store):
    node = enrol(store)
    said = replace(
        node,
        version="1.2",
        last_seen=NOW,
        reported=3,
        reported_at=NOW,
        holdings=("web",),
        holdings_serial=3,
        carried=(80,),
        failures={"web": "no"},
        refusal=Refusal("no", 3, NOW),
    )
    store.nodes.save(said)
    store.nodes.begin_anew("a")
    assert store.nodes.get("a") == replace(node, holdings=("web",), holdings_serial=3)


def test_a_removed_node_leaves_nothing(store):
    enrol(store)
    declare(store, 3, ["web"])
    store.nodes.remove("a")
    assert store.nodes.names() == ()
    assert store.declarations.due() == ()
    assert store.declarations.ids("a") == {}


def test_a_transaction_is_whole_or_not_at_all(store):
    def half():
        with store.transaction():
            enrol(store)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert store.nodes.names() == ()


def test_a_token_is_spent_once_ended_and_forgotten(store):
    id = add_token(store)
    store.tokens.spend(id, SPENDING, NOW)
    (token,) = store.tokens.live()
    assert (token.id, token.node, token.spending) == (id, "a", SPENDING)
    assert store.tokens.nodes_over(NOW + 3600) == ()
    assert store.tokens.end_spent("a")
    assert not store.tokens.end_spent("a")
    assert store.tokens.live() == ()
    assert store.tokens.nodes_over(NOW) == ("a",)
    assert store.tokens.forget_over("a", NOW)
    assert store.tokens.nodes_over(NOW) == ()


def test_an_ended_token_has_no_password_any_more(store):
    store.tokens.spend(add_token(store), SPENDING, NOW)
    store.tokens.end_spent("a")
    assert store._database.row("SELECT password FROM token")["password"] is None


def test_speaking_ends_no_token_that_was_not_spent(store):
    add_token(store)
    assert not store.tokens.end_spent("a")
    assert len(store.tokens.live()) == 1


def test_an_expired_token_is_over_unless_it_was_spent(store):
    add_token(store)
    assert store.tokens.nodes_over(NOW + 59) == ()
    assert store.tokens.nodes_over(NOW + 60) == ("a",)


def test_an_account_stays_while_another_token_of_the_node_counts(store):
    add_token(store, digest=b"old", expires=NOW)
    add_token(store, digest=b"new")
    assert not store.tokens.forget_over("a", NOW)
    assert [token.digest for token in store.tokens.live()] == [b"new"]


def test_one_token_of_a_node_is_kept(store):
    add_token(store, digest=b"old")
    add_token(store, "b", digest=b"another's")
    id = add_token(store, digest=b"new")
    store.tokens.forget_others("a", id)
    assert {token.digest for token in store.tokens.live()} == {b"new", b"another's"}


def test_the_newest_declaration_is_wanted_and_due(store):
    enrol(store)
    declare(store, 1, ["web"])
    declare(store, 2, ["db"])
    assert store.nodes.get("a").wanted == 2
    assert [one.serial for one in store.declarations.due()] == [2]
    assert store.declarations.wanted("a") == Wanted("a", 2, b"data2", b"signature", NOW + 2)
    store.declarations.confirm("a", 2)
    assert store.declarations.due() == ()
    store.declarations.send_again("a")
    assert [one.serial for one in store.declarations.due()] == [2]


def test_a_late_confirmation_of_an_older_declaration_confirms_no_newer(store):
    enrol(store)
    declare(store, 1)
    declare(store, 2)
    store.declarations.confirm("a", 1)
    assert [one.serial for one in store.declarations.due()] == [2]


def test_every_id_ever_declared_is_known_with_its_newest_serial(store):
    enrol(store)
    for serial in range(1, 40):
        declare(store, serial, ["web", f"n{serial}"])
    ids = store.declarations.ids("a")
    assert (ids["web"], ids["n1"], len(ids)) == (39, 1, 40)
    assert store.declarations.ids("b") == {}


def test_only_a_nodes_newest_declarations_are_kept(store):
    enrol(store)
    enrol(store, "b")
    declare(store, 1, node="b")
    for serial in range(1, 40):
        declare(store, serial)
    kept = store._database.rows("SELECT serial FROM declaration WHERE node = 'a' ORDER BY serial")
    assert [row["serial"] for row in kept] == list(range(20, 40))
    assert store.declarations.wanted("b") is not None


def test_signers_come_newest_last(store):
    store.signers.add(Signer(1, b"1" * 32, NOW))
    store.signers.add(Signer(2, b"2" * 32, NOW))
    assert [one.number for one in store.signers.all()] == [1, 2]


def test_settings_have_defaults(store):
    assert (store.settings.patience, store.settings.parked) == (180.0, 0)
    store.settings.set_patience(7.5)
    store.settings.set_parked(3)
    assert (store.settings.patience, store.settings.parked) == (7.5, 3)


def test_a_setting_that_stays_is_not_written(store, state):
    store.settings.set_parked(3)
    with closing(open_store(state)) as reader:
        before = reader.version()
        store.settings.set_parked(3)
        assert reader.version() == before
        store.settings.set_parked(4)
        assert reader.version() != before


SECRET = MeshSecret("db", "first-value", 1, NOW)


def test_a_store_from_before_there_were_secrets_is_brought_up_to_date(state):
    path = state / "control" / "store.db"
    with closing(open_database(path, migrations=_MIGRATIONS[:1], migrate=True)) as old:
        old.execute(
            "INSERT INTO node (name, public_key, overlay_key, profile, enrolled, joined_under, confirmed)"
            " VALUES ('a', x'01', x'', '{}', 0, x'', x'')"
        )
        old.execute(
            """INSERT INTO arrangement VALUES ('a', '{"assignments":[],"own":null,"released":[]}', '["b"]', 0)"""
        )
    with pytest.raises(Refused, match="start the new program in the old one's place first"):
        open_store(state)
    with closing(open_store(state, migrate=True)) as store:
        assert store.arrangements.users_of("b") == ("a",)
        assert store.arrangements.users_of_secret("db") == {}
        store.secrets.put(SECRET)
    with closing(open_store(state)) as store:
        assert store.secrets.all() == (SECRET,)


def test_what_was_sealed_is_used_for_the_same_value_and_key_only(store):
    enrol(store)
    store.secrets.put(SECRET)
    store.secrets.keep_sealed(SECRET, "a", b"k" * 32, b"box")
    assert store.secrets.sealed(SECRET, "a", b"k" * 32) == b"box"
    assert store.secrets.sealed(SECRET, "a", b"n" * 32) is None
    assert store.secrets.sealed(replace(SECRET, version=2), "a", b"k" * 32) is None
    store.secrets.put(replace(SECRET, value="second", version=2))
    assert store.secrets.sealed(SECRET, "a", b"k" * 32) is None


def test_a_secret_or_node_that_goes_takes_what_was_sealed_with_it(store):
    for name in ("a", "b"):
        enrol(store, name)
    store.secrets.put(SECRET)
    for name in ("a", "b"):
        store.secrets.keep_sealed(SECRET, name, b"k" * 32, b"box")
    store.nodes.remove("b")
    assert store._database.rows("SELECT node FROM sealed")[0]["node"] == "a"
    store.secrets.remove("db")
    assert store._database.rows("SELECT * FROM sealed") == []
    assert store.secrets.names() == ()


def test_a_value_that_is_gone_is_not_in_the_file_any_more(store, state):
    store.secrets.put(SECRET)
    store.secrets.put(replace(SECRET, value="second-value", version=2))
    store.secrets.put(replace(SECRET, name="other", value="third-value"))
    store.secrets.remove("other")
    store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = (state / "control" / "store.db").read_bytes()
    assert b"second-value" in data
    assert b"first-value" not in data
    assert b"third-value" not in data


def test_a_secret_does_not_print_its_value():
    assert "first-value" not in repr(SECRET)


def test_who_reports_nothing_trusts_what_its_token_said_while_that_counts(store):
    store.signers.add(Signer(1, b"1" * 32, NOW))
    store.signers.add(Signer(2, b"2" * 32, NOW))
    store.nodes.enrol("a", b"k" * 32, b"", {}, NOW, signer=b"1" * 32)
    store.declarations.add(Wanted("a", 1, b"data", b"signature", NOW), b"1" * 32, (), offers=b"2" * 32)
    store.nodes.confirm("a", 1)
    assert store.nodes.get("a").confirmed == b"2" * 32
    store.nodes.confirm("a", 0)
    assert store.nodes.get("a").confirmed == b"1" * 32
    store.nodes.confirm("a", 1)
    store.signers.retire(1)
    store.nodes.confirm("a", 0)
    assert store.nodes.get("a").confirmed == b"2" * 32
