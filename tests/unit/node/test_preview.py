from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.bundle import Bundle
from agent.node import folder
from agent.node.life import begin
from agent.node.plans import Asked, plans_for
from agent.node.preview import preview
from agent.node.substrate import port_warnings
from agent.reconcile.change import Change, Line
from agent.resources import Context, parse_list


def asked(ground: Path, *resources: Mapping[str, object], prune: bool = False) -> Asked:
    document = {"name": "b", "resource": list(resources)}
    return Asked(ground / "state", Bundle("b", "ab" * 32, document, {}, Path("/nowhere")), None, "a", prune=prune)


def raised(asks: Asked) -> None:
    plans = plans_for(asks)
    folder.prepare(asks.state)
    node = begin(asks, plans, asks.bundle)
    assert node.raise_substrate((), lambda step: None, lambda: False).failed == {}
    node.ledger.close()


def test_a_plan_on_a_bare_machine_makes_nothing(ground: Path) -> None:
    found = ground / "found"
    found.write_text("theirs\n")
    secret = {"kind": "secret", "name": "pw"}
    content = {"kind": "file", "name": str(found), "content": "pw=${secret.pw}\n", "template": True}
    made = {"kind": "directory", "name": str(ground / "made")}
    planned = preview(asked(ground, secret, content, made))
    assert planned.lines == (
        Line("secret:pw", Change.CREATE, "not there yet"),
        Line(
            f"file:{found}",
            Change.CHANGE,
            "other content",
            "--- is\n+++ will be\n@@ -1 +1 @@\n-theirs\n+pw=${secret.pw}\n",
        ),
        Line(f"directory:{ground / 'made'}", Change.CREATE, "not there yet"),
    )
    assert planned.changes
    assert [path.name for path in ground.iterdir()] == ["found"]


def test_after_a_raise_nothing_is_planned_and_a_secret_is_never_shown(ground: Path) -> None:
    path = ground / "conf"
    secret = {"kind": "secret", "name": "pw"}
    content = {"kind": "file", "name": str(path), "content": "pw=${secret.pw}\n", "template": True}
    asks = asked(ground, secret, content)
    raised(asks)
    value = path.read_text().removeprefix("pw=").strip()
    assert not preview(asks).changes
    # What the file held before by that secret is hidden too, now that nothing in the list refers to it.
    plain = {"kind": "file", "name": str(path), "content": "pw=none\n"}
    changed = preview(asked(ground, secret, plain)).lines[1]
    assert changed.change is Change.CHANGE
    assert "-pw=${secret.pw}\n+pw=none" in changed.difference
    assert value not in changed.difference


def test_what_a_newer_bundle_drops_is_kept_until_it_is_pruned(ground: Path) -> None:
    one, two = ({"kind": "directory", "name": str(ground / name)} for name in ("one", "two"))
    raised(asked(ground, one, two))
    kept = preview(asked(ground, one))
    assert [(line.id, line.change) for line in kept.lines] == [
        (f"directory:{ground / 'one'}", Change.KEEP),
        (f"directory:{ground / 'two'}", Change.KEEP),
    ]
    assert not kept.changes
    pruned = preview(asked(ground, one, prune=True))
    assert pruned.lines[1] == Line(f"directory:{ground / 'two'}", Change.REMOVE, "it is no longer carried")
    assert pruned.changes


@pytest.mark.parametrize(
    ("dropped", "stays"),
    [
        ({"kind": "secret", "name": "pw"}, True),
        ({"kind": "directory", "name": "{}/data", "data": True}, True),
        ({"kind": "reserved", "name": "own", "ports": ["22"]}, False),
    ],
)
def test_a_plan_says_what_a_prune_leaves_where_it_is(ground: Path, dropped: dict[str, Any], stays: bool) -> None:
    one = {"kind": "directory", "name": str(ground / "one")}
    raised(asked(ground, one, {**dropped, "name": dropped["name"].format(ground)}))
    _, kept = preview(asked(ground, one)).lines
    _, pruned = preview(asked(ground, one, prune=True)).lines
    assert ("leaves it where it is" in kept.reason, "takes it away" in kept.reason) == (stays, not stays)
    assert (pruned.change, "stays where it is" in pruned.reason) == (Change.REMOVE, stays)


def test_a_port_that_the_kernel_gives_out_is_warned_of() -> None:
    reserved = {"kind": "reserved", "name": "web", "ports": ["80", "40000/udp", "127.0.0.1:40000", "[::1]:40000"]}
    resources = parse_list([reserved], Context(Path("/state")))
    warnings = list(port_warnings(resources, range(32768, 61000)))
    assert len(warnings) == 1
    assert "reserved:web declares port 40000," in warnings[0]
    assert "(32768 to 60999)" in warnings[0]
