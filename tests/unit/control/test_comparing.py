"""What a declaration would change, resource by resource."""

from __future__ import annotations

from agent.control.comparing import compare
from agent.reconcile.change import Change, Line

FILE = {"kind": "file", "name": "/etc/a", "content": "one\ntwo\n"}
SERVICE = {"kind": "service", "name": "web", "command": ["/bin/web"], "environment": {"A": "1"}}


def test_every_resource_is_created_changed_kept_or_removed():
    gone = {"kind": "package", "name": "jq"}
    last = {"kind": "package", "name": "curl"}
    new = {"kind": "directory", "name": "/srv"}
    compared = compare([gone, FILE, SERVICE, last], [new, SERVICE, {**FILE, "mode": "0600"}])
    assert compared.lines == (
        Line("directory:/srv", Change.CREATE, "it is not declared yet"),
        Line("service:web", Change.KEEP, ""),
        Line("file:/etc/a", Change.CHANGE, "its mode changes"),
        Line("package:curl", Change.REMOVE, "it is no longer declared"),
        Line("package:jq", Change.REMOVE, "it is no longer declared"),
    )
    assert compared.changes
    assert not compare([FILE], [FILE]).changes


def test_a_files_content_is_shown_as_a_diff():
    (line,) = compare([FILE], [{**FILE, "content": "one\n2\n", "mode": "0600"}]).lines
    assert line.reason == "its content and mode change"
    assert line.difference == "--- declared\n+++ new\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"


def test_values_other_than_a_files_content_are_not_shown():
    before = {"kind": "secret", "name": "db", "sealed": "AAAA"}
    lines = compare(
        [before, SERVICE], [{**before, "sealed": "BBBB"}, {**SERVICE, "environment": {"A": "2"}, "user": "x"}]
    ).lines
    assert [line.reason for line in lines] == ["the mesh has changed it", "its environment and user change"]
    assert all(not line.difference and "BBBB" not in line.reason for line in lines)
