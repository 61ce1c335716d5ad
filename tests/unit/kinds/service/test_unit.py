from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import Refused
from agent.host.processes import Process
from agent.kinds import marks
from agent.kinds.kind import Held, Machine, Mark, Verb, Wanted
from agent.kinds.service import unit_record, unit_text
from agent.kinds.service.action import Action
from agent.kinds.service.unit import AsUnit, Observed, plan
from agent.kinds.service.unit_record import Place, Start
from agent.resources import Context, Resource, parse_resource, specs

STATE = Path("/var/lib/mesh-agent")
MARK = Mark(str(STATE), "service:web", found=False, stamp="stamp")
PLACE = Place(STATE, "web")
ANEW = (Action.PLACE, Action.START)


def declare(**more: object) -> Resource:
    item = {"kind": "service", "name": "web", "command": ["/bin/sleep", "1"], **more}
    return parse_resource(item, "resource", Context(STATE))


def spec(**more: object) -> specs.Service:
    found = declare(**more).spec
    assert isinstance(found, specs.Service)
    return found


def lines(late: Mapping[str, str] | None = None, **more: object) -> list[str]:
    return unit_text.unit(spec(**more), MARK, PLACE, late or {}).splitlines()


def test_a_unit_says_whose_it_is_in_its_first_line() -> None:
    text = unit_text.unit(spec(), MARK, PLACE, {}).encode()
    assert marks.decode_line(text) == MARK
    assert marks.decode_line(b"[Unit]\n# mesh-agent: {}\n") is None
    assert marks.decode_line(b"# mesh-agent: nonsense\n") is None
    assert marks.decode_line(b"") is None


def test_a_unit_says_what_was_declared() -> None:
    said = lines(
        command=["/srv/a b", "%n", "$X", "-"],
        user="nobody",
        directory="/srv/100% ",
        environment={"A": "1 %", "PATH": "/bin"},
        stop_signal="SIGINT",
        stop_timeout=7,
    )
    for line in (
        "User=nobody",
        "WorkingDirectory=/srv/100%% /",
        'Environment="PATH=/bin"',
        'Environment="LANG=C.UTF-8"',
        'Environment="A=1 %%"',
        "EnvironmentFile=/var/lib/mesh-agent/run/units/web.env",
        'ExecStart=:"/srv/a b" "%%n" "$X" "-"',
        "KillSignal=SIGINT",
        "TimeoutStopSec=7",
        "WantedBy=multi-user.target",
    ):
        assert said.count(line) == 1, (line, said)


def test_what_holds_a_secret_is_in_the_other_file_alone() -> None:
    late = {"secret.key": 'v"$al', "fingerprint.web": "f" * 64}
    declared = {
        "command": ["/bin/sleep", "${fingerprint.web}"],
        "environment": {"KEY": "a ${secret.key} b", "OPEN": "1"},
    }
    said = lines(late, **declared)
    assert f'ExecStart=:"/bin/sleep" "{"f" * 64}"' in said
    assert not [line for line in said if "KEY" in line or 'v"$al' in line]
    hidden = unit_text.environment(spec(**declared), "stamp", {}, late).splitlines()
    assert hidden[0] == 'KEY="a v\\"\\$al b"'
    assert [line.partition("=")[0] for line in hidden[1:]] == ["AGENT_SERVICE_STAMP", "AGENT_SERVICE_WATCHED"]
    assert "AGENT_SERVICE=" not in "\n".join(hidden)
    with pytest.raises(KeyError):
        lines(**declared)


def test_a_program_is_found_as_a_detached_one_s_is() -> None:
    def found(late: Mapping[str, str] | None = None, **more: object) -> str:
        return unit_text.program(spec(**more), late or {})

    assert found(command=["env"]) == "/usr/bin/env"
    assert found(command=["env"], environment={"PATH": "/nowhere"}) == "env"
    assert found(command=["bin/x"], directory="/srv") == "/srv/bin/x"
    assert found(command=["/bin/x"], directory="/srv") == "/bin/x"


def test_a_plan_is_pure_and_each_case_has_its_reason() -> None:
    wanted = Wanted(declare(), "stamp")
    main = Process(7, 7)
    as_wanted = Observed(main, "stamp", (), True, True, "", False)
    assert plan(wanted, as_wanted, Held(False, "stamp")).verb is Verb.KEEP
    adopted = plan(wanted, as_wanted, None)
    assert (adopted.verb, adopted.actions) == (Verb.ADOPT, ())
    for observed, verb, reason, actions in (
        (replace(as_wanted, leftover=True), Verb.CHANGE, "it runs detached, from before systemd", ANEW),
        (replace(as_wanted, main=None), Verb.CREATE, "it is not running", ANEW),
        (replace(as_wanted, stamp="other"), Verb.CHANGE, "it runs as it was declared before", ANEW),
        (replace(as_wanted, changed=("/a",)), Verb.CHANGE, "/a has changed since its start", ANEW),
        (replace(as_wanted, difference="why"), Verb.CHANGE, "why", (Action.PLACE,)),
        (replace(as_wanted, difference="why", ready=False), Verb.CHANGE, "why", (Action.PLACE, Action.AWAIT)),
        (replace(as_wanted, difference="why", recorded=False, ready=False), Verb.CHANGE, "why", ANEW),
        (replace(as_wanted, ready=False), Verb.ADOPT, "it runs already, but was not seen ready", (Action.AWAIT,)),
    ):
        made = plan(wanted, observed, Held(False, "stamp"))
        assert (made.verb, made.reason, made.actions) == (verb, reason, actions)


def test_a_record_is_read_as_it_was_written(ground: Path) -> None:
    place = Place(ground, "web")
    assert unit_record.read(place.record) is None
    unit_record.make_folder(place)
    start = Start("0f", "stamp", {"/a": "digest"}, "look", ready=True)
    unit_record.write(place.record, start)
    assert unit_record.read(place.record) == start
    place.record.write_text("{}")
    assert unit_record.read(place.record) is None


def test_a_program_that_systemd_can_not_run_is_refused(ground: Path) -> None:
    program = ground / "it's"
    program.touch(mode=0o755)
    way = AsUnit(lambda when, late, seconds: None, 0.1)
    with pytest.raises(Refused, match="takes no program whose path holds quotes"):
        way.check(spec(command=[str(program)]), Machine(STATE, b"", lambda name: iter(())), ())
