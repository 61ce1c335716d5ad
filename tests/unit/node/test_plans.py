from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from agent.bundle import Bundle
from agent.errors import Refused
from agent.node.identity import Role, Self
from agent.node.plans import Asked, decide
from agent.token import Token

TOKEN = Token("from-token", "amqps://10.0.0.1:5671", ("ab" * 32,), b"s" * 32, "geheim")


def bundle(params: Mapping[str, object] | None = None) -> Bundle:
    return Bundle("b", "ab" * 32, {"name": "b", "params": params or {}, "resource": []}, {}, Path("/nowhere"))


ASKED = Asked(Path("/state"), bundle(params={"port": 1, "motto": ""}), None)
FOUNDER, JOINER, ALONE = (Self("old", role) for role in (Role.FOUNDER, Role.JOINER, Role.ALONE))


def asked(name: str | None = None, token: Token | None = None, **settings: str) -> Asked:
    return replace(ASKED, name=name, token=token, settings=settings)


@pytest.mark.parametrize(
    ("known", "asks", "carries_mesh", "decided"),
    [
        (None, asked("new"), True, Self("new", Role.FOUNDER)),
        (None, asked("new"), False, Self("new", Role.ALONE)),
        (None, asked("new", TOKEN), True, Self("from-token", Role.JOINER)),
        (None, asked(None, TOKEN), False, Self("from-token", Role.JOINER)),
        (FOUNDER, asked(), True, FOUNDER),
        (FOUNDER, asked("old"), True, FOUNDER),
        (FOUNDER, asked(), False, FOUNDER),
        (JOINER, asked(), True, JOINER),
        (JOINER, asked(None, TOKEN), True, Self("from-token", Role.JOINER)),
        (JOINER, asked("old", TOKEN), True, Self("from-token", Role.JOINER)),
        (JOINER, asked("from-token", TOKEN), True, Self("from-token", Role.JOINER)),
        (ALONE, asked(), False, ALONE),
        (ALONE, asked(), True, Self("old", Role.FOUNDER)),
        (ALONE, asked(None, TOKEN), False, Self("from-token", Role.JOINER)),
        (ALONE, asked(None, TOKEN), True, Self("from-token", Role.JOINER)),
    ],
)
def test_who_this_machine_is(known: Self | None, asks: Asked, carries_mesh: bool, decided: Self) -> None:
    assert decide(known, asks, carries_mesh) == decided


@pytest.mark.parametrize(
    ("known", "asks", "why"),
    [
        (None, asked("No Label"), 'the node name "No Label" is no DNS label'),
        (FOUNDER, asked(None, TOKEN), "founded its own mesh, as old, so it cannot join another"),
        (FOUNDER, asked("new"), "is called old since its first up; `agent reset` first to rename it"),
        (JOINER, asked("new"), "is called old since its first up"),
        (JOINER, asked("new", TOKEN), "is called old since its first up"),
        (ALONE, asked("new"), "is called old since its first up"),
    ],
)
def test_what_contradicts_what_was_decided_is_refused(known: Self | None, asks: Asked, why: str) -> None:
    for carries_mesh in (True, False):
        with pytest.raises(Refused, match=why):
            decide(known, asks, carries_mesh)


def test_what_was_set_is_remembered_until_it_is_set_otherwise_or_no_parameter_any_more() -> None:
    first = decide(None, asked("a", port="2"), True)
    assert first.settings == {"port": "2"}
    second = decide(first, asked(motto="x"), True)
    assert second.settings == {"port": "2", "motto": "x"}
    assert decide(second, asked(port="3"), True).settings == {"port": "3", "motto": "x"}
    # A newer bundle that asks for less still comes up; what is asked now is checked when the list is filled.
    newer = replace(asked(prot="4"), bundle=bundle(params={"motto": ""}))
    assert decide(second, newer, True).settings == {"motto": "x", "prot": "4"}
    assert decide(second, replace(asked(), bundle=bundle()), True).settings == {}
