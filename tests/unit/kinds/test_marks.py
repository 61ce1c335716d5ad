from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kinds import marks
from agent.kinds.kind import Mark, Standing

STATE = Path("/var/lib/mesh-agent")
MARK = Mark(str(STATE), "file:/etc/a", found=True, stamp="ab.cd")


@given(st.builds(Mark, state=st.text(), id=st.text(), found=st.booleans(), stamp=st.text()))
def test_a_mark_survives_its_bytes(mark: Mark) -> None:
    assert marks.decode(marks.encode(mark)) == mark


def test_the_bytes_can_be_read_by_a_person() -> None:
    assert marks.encode(MARK) == b'{"found":true,"id":"file:/etc/a","stamp":"ab.cd","state":"/var/lib/mesh-agent"}'


@given(st.binary())
def test_anything_else_is_no_mark(data: bytes) -> None:
    assert marks.decode(data) is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff", b"[]", b'{"found":1,"id":"a","stamp":"","state":"b"}', b"[" * 100_000]
)
def test_a_malformed_mark_is_no_mark(data: bytes) -> None:
    assert marks.decode(data) is None


def test_whose_a_thing_is() -> None:
    made = marks.encode(Mark(str(STATE), "file:/etc/a", found=False, stamp=""))
    assert marks.standing(None, "file:/etc/a", STATE) is Standing.FOREIGN
    assert marks.standing(b"?", "file:/etc/a", STATE) is Standing.FOREIGN
    assert marks.standing(made, "file:/etc/a", STATE) is Standing.MADE
    assert marks.standing(marks.encode(MARK), "file:/etc/a", STATE) is Standing.FOUND
    assert marks.standing(made, "file:/etc/b", STATE) is Standing.FOREIGN
    assert marks.standing(made, "file:/etc/a", Path("/srv/other")) is Standing.FOREIGN
