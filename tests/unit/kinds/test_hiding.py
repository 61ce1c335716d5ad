"""What a failure says tells no secret, and nothing of a short one by hiding it where it stands by chance."""

from __future__ import annotations

import pytest

from agent.errors import Unavailable
from agent.kinds.hiding import hidden, hiding


@pytest.mark.parametrize(
    ("text", "late", "shown"),
    [
        ("login as long-enough failed", {"secret.db": "long-enough"}, "login as ${secret.db} failed"),
        ("xlong-enoughx", {"secret.db": "long-enough"}, "x${secret.db}x"),
        ("pin=1234, not 12345", {"secret.pin": "1234"}, "pin=${secret.pin}, not 12345"),
        ("the file e is there", {"secret.x": "e"}, "the file ${secret.x} is there"),
        ("abcdefgh-more abcdefgh", {"secret.a": "abcdefgh", "secret.b": "abcdefgh-more"}, "${secret.b} ${secret.a}"),
        ("long-enough", {"secret.db": "long-enough", "secret.x": "secret", "secret.y": "db"}, "${secret.db}"),
        ("bad key: AAAAAAAAAAAA", {"secret.key": "-----BEGIN-----\nAAAAAAAAAAAA\n="}, "bad key: ${secret.key}"),
        ("a.c abc", {"secret.x": "a.c"}, "${secret.x} abc"),
        ("nothing of it", {"secret.x": "", "secret.y": " \n"}, "nothing of it"),
    ],
)
def test_a_value_is_replaced_by_its_name(text: str, late: dict[str, str], shown: str) -> None:
    assert hidden(text, late) == shown


def test_what_failed_is_told_without_it_and_without_its_cause() -> None:
    with (
        pytest.raises(Unavailable, match=r"^it said \$\{secret\.db\}$") as raised,
        hiding({"secret.db": "hidden-word"}),
    ):
        raise Unavailable("it said hidden-word")
    assert raised.value.__cause__ is None
