from __future__ import annotations

from pathlib import Path

import pytest

from agent.resources import Context, NoBlobs, parse_resource, split_id


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("file:/etc/x", ("file", "/etc/x")),
        ("file:/etc/a:b", ("file", "/etc/a:b")),
        ("file", ("file", "")),
        ("file:", ("file", "")),
        (":x", ("", "x")),
        ("", ("", "")),
    ],
)
def test_an_id_is_split_at_the_first_colon(text: str, parts: tuple[str, str]) -> None:
    assert split_id(text) == parts


def test_an_id_says_where_the_thing_is() -> None:
    resource = parse_resource({"kind": "directory", "name": "/etc/a:b"}, "resource[0]", Context(Path("/state")))
    assert resource.id == "directory:/etc/a:b"
    assert split_id(resource.id) == (resource.kind, resource.name)


def test_the_machines_own_names_cannot_be_given_another_meaning() -> None:
    known = Context(Path("/state"), {"state": "/elsewhere", "param.x": "1"}).known
    assert known == {"state": "/state", "agent": "/state/agent", "param.x": "1"}


def test_a_list_that_travels_alone_carries_no_blobs() -> None:
    assert NoBlobs().facts("x") is None
    with pytest.raises(KeyError):
        NoBlobs().read("x")
