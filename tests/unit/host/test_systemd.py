from __future__ import annotations

import json

from agent.host import systemd


def test_properties_are_read_one_a_line() -> None:
    text = "MainPID=12\nFragmentPath=\nExecStart={ path=/bin/a ; argv[]=/bin/a b=c }\n\n"
    assert systemd.parse_properties(text) == {
        "MainPID": "12",
        "FragmentPath": "",
        "ExecStart": "{ path=/bin/a ; argv[]=/bin/a b=c }",
    }


def test_the_unit_of_a_process_is_found_on_every_hierarchy() -> None:
    hybrid = "2:cpu:/\n1:name=systemd:/system.slice/web.service\n0::/system.slice/web.service\n"
    assert systemd.parse_unit(hybrid) == "web.service"
    assert systemd.parse_unit("0::/system.slice/web.service/payload/x.scope\n") == "web.service"
    inside = "1:name=systemd:/libpod_parent/libpod-1/system.slice/web.service\n"
    assert systemd.parse_unit(inside) == "web.service"
    assert systemd.parse_unit("0::/user.slice/user-0.slice/session-1.scope\n") == ""
    assert systemd.parse_unit("3:cpu:/system.slice/web.service\n") == ""
    assert systemd.parse_unit("") == ""


def entry(moment: float, message: object) -> str:
    return json.dumps({"__MONOTONIC_TIMESTAMP": str(int(moment * 1_000_000)), "MESSAGE": message})


def test_the_journal_is_read_from_a_moment_on_in_its_order() -> None:
    text = "\n".join([entry(12.5, "last"), entry(12.0, [104, 233]), entry(11.0, "first"), entry(10.9, "before")])
    assert systemd.parse_journal(text, 11.0) == ["first", "h\ufffd", "last"]


def test_what_is_no_entry_is_passed_over() -> None:
    text = "\n".join(["-- No entries --", "{}", "[]", "3", entry(1, None), entry(1, "x")])
    assert systemd.parse_journal(text, 0) == ["x", ""]
    assert systemd.parse_journal("", 0) == []


def test_a_machine_without_systemd_is_not_asked() -> None:
    assert systemd.unit_of(2**22 + 1) == ""
