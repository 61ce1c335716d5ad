"""Single services as units, on a machine with nothing else: what is restarted when, what is told, what stays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.lab.machines import STATE, UNITS, Lab, Machine

# The first test waits for the machines' image.
pytestmark = pytest.mark.timeout(900)

SLEEP = "exec sleep 100000"
WEB = UNITS / "web.service"
# A state folder with the unpacked code and nothing else: doing that anew takes longer than a test.
UNPACKED = Path("/root/unpacked")


@pytest.fixture(scope="module")
def shared(lab: Lab, built_file: Path) -> Iterator[Machine]:
    made = lab.machine("services", built_file)
    made.ask("/root/agent", "--version")
    made.sh(f"mv {STATE} {UNPACKED}")
    yield made
    made.remove()


@pytest.fixture
def machine(shared: Machine) -> Iterator[Machine]:
    """A machine on which no agent ever was; each test leaves it so."""
    shared.sh(f"cp -a {UNPACKED} {STATE}")
    yield shared
    if shared.exists(STATE / "ledger.db"):
        done = shared.agent("reset")
        assert done.returncode == 0, done.stdout + done.stderr
    # Where an agent found no reason to begin, its unpacked code is there still.
    shared.sh(f"rm -rf {STATE}")
    assert shared.unit("web", "LoadState", "ActiveState") == ["not-found", "inactive"]
    assert shared.sh(f"ls {UNITS}/*.service 2>/dev/null || true") == ""


def bundle(script: str = SLEEP, before: str = "", **fields: object) -> str:
    """The text of a bundle with the service `web`, an sh script; `before` are resources before it."""
    return f'name = "test"\n{before}\n{resource(script, **fields)}'


def resource(script: str = SLEEP, **fields: object) -> str:
    """The text of a service's declaration; it is ready at once unless `fields` say otherwise."""
    values: dict[str, object] = {"kind": "service", "name": "web", "command": ["/bin/sh", "-c", script]}
    values |= {"stop_timeout": 5, "ready": {"command": ["/bin/true"]}, **fields}
    return "\n".join(["[[resource]]", *(f"{key} = {toml(value)}" for key, value in values.items() if value), ""])


def toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def reloads(machine: Machine) -> int:
    """How often systemd has read its units anew."""
    return machine.sh("journalctl --quiet --no-pager --output=cat _PID=1").splitlines().count("Reloading.")


def test_a_second_run_does_nothing(machine: Machine) -> None:
    assert machine.raise_(bundle())["service:web"][0] == "created"
    pid, before = machine.main("web"), reloads(machine)
    assert machine.raise_(bundle())["service:web"] == ("kept", "")
    assert (machine.main("web"), reloads(machine)) == (pid, before)


def test_another_declaration_restarts_it(machine: Machine) -> None:
    machine.raise_(bundle())
    pid = machine.main("web")
    changed = bundle(environment={"X": "$1 %n"})
    assert machine.raise_(changed)["service:web"] == ("changed", "it runs as it was declared before")
    assert machine.main("web") not in (0, pid)
    assert "\0X=$1 %n\0" in machine.sh(f"cat /proc/{machine.main('web')}/environ")


def test_a_watched_file_restarts_it_without_a_reload(machine: Machine) -> None:
    machine.write(Path("/root/watched"), "1")
    text = bundle(watches=["/root/watched"])
    machine.raise_(text)
    pid, before = machine.main("web"), reloads(machine)
    machine.write(Path("/root/watched"), "2")
    assert machine.raise_(text)["service:web"] == ("changed", "/root/watched has changed since its start")
    assert machine.main("web") not in (0, pid)
    assert reloads(machine) == before
    assert machine.raise_(text)["service:web"][0] == "kept"


def test_what_is_done_to_its_files_is_put_right_without_ending_it(machine: Machine) -> None:
    machine.raise_(bundle())
    pid, text = machine.main("web"), machine.read(WEB)
    for deed, why in (
        (f"echo >>{WEB}", "its unit's file is not as it should be"),
        (f"rm {WEB}", "its unit's file is gone"),
        ("systemctl disable web", "it would not be started at boot"),
        (f"rm {STATE}/run/units/web.env", "the file of its environment is gone"),
        (f"touch {WEB}", "systemd has not read its files since they changed"),
    ):
        machine.sh(deed)
        assert machine.raise_(bundle())["service:web"] == ("changed", why)
        assert machine.main("web") == pid
        assert machine.read(WEB) == text
        assert machine.unit("web", "UnitFileState", "NeedDaemonReload") == ["enabled", "no"]
    assert machine.raise_(bundle())["service:web"][0] == "kept"


def test_what_somebody_else_s_file_has_started_is_started_anew(machine: Machine) -> None:
    machine.raise_(bundle())
    machine.sh(f"sed -i s/100000/99999/ {WEB}; systemctl daemon-reload; systemctl restart web")
    machine.raise_(bundle())
    assert "sleep\x00100000" in machine.sh(f"cat /proc/{machine.main('web')}/cmdline")


def test_one_that_was_stopped_is_started_again(machine: Machine) -> None:
    machine.raise_(bundle())
    machine.sh("systemctl stop web")
    assert machine.states()["service:web"] == "missing"
    assert machine.raise_(bundle())["service:web"][0] == "created"


def test_systemd_starts_it_again_and_the_agent_takes_that_over(machine: Machine) -> None:
    text = bundle("touch /run/up; exec sleep 100000", ready={"file": "/run/up"})
    machine.raise_(text)
    pid = machine.main("web")
    machine.sh(f"kill -9 {pid}")
    machine.wait(lambda: machine.main("web") not in (0, pid))
    pid = machine.main("web")
    assert machine.raise_(text)["service:web"] == ("adopted", "it runs already, but was not seen ready")
    assert machine.raise_(text)["service:web"][0] == "kept"
    assert machine.main("web") == pid


def test_a_lost_record_loses_nothing(machine: Machine) -> None:
    text = bundle(watches=["/etc/hostname"])
    machine.raise_(text)
    pid = machine.main("web")
    machine.sh(f"rm {STATE}/run/units/web.json")
    assert machine.raise_(text)["service:web"][0] == "adopted"
    assert machine.main("web") == pid


def test_secrets_reach_it_by_a_file_of_root_s_alone(machine: Machine) -> None:
    secret = '[[resource]]\nkind = "secret"\nname = "key"\n'
    text = bundle(before=secret, environment={"KEY": "a ${secret.key} b", "OPEN": "x"}, user="nobody")
    machine.raise_(text)
    value = machine.read(STATE / "secrets/root/key").strip()
    assert f"\0KEY=a {value} b\0" in machine.sh(f"cat /proc/{machine.main('web')}/environ")
    assert value not in machine.read(WEB)
    assert 'Environment="OPEN=x"' in machine.read(WEB)
    assert value not in machine.sh("systemctl show web")
    assert machine.sh(f"stat -c '%a %U' {STATE}/run/units/web.env") == "600 root"
    failing = bundle('echo "no such key: $KEY"; exit 1', before=secret, environment={"KEY": "${secret.key}"})
    done = machine.up(failing)
    assert "no such key: ${secret.key}" in done.stdout
    assert value not in done.stdout + done.stderr


def test_what_can_not_be_raised_is_told_and_ended(machine: Machine) -> None:
    last = "The last line of the journal of"
    never = {"file": "/run/never", "timeout": 1}
    cases: dict[str, tuple[dict[str, object], str]] = {
        "ends": (
            {"script": "seq 1000; echo 'the reason' >&2; echo; exit 3", "ready": None},
            f"The service ends ended at once. {last} ends.service: the reason",
        ),
        "early": (
            {"script": "echo the reason; exit 3", "ready": never},
            f"The service early ended before it was ready. {last} early.service: the reason",
        ),
        "late": (
            {"script": f"echo so far; {SLEEP}", "ready": never},
            f"was not ready within 1 seconds and was stopped: /run/never is not there. {last} late.service: so far",
        ),
        "silent": (
            {"script": "exit 0", "ready": None},
            "The service silent ended at once. It wrote nothing to the journal of silent.service.",
        ),
        "program": (
            {"command": ["/etc/hostname"]},
            "The service program can't be started: there is no program /etc/hostname; install it.",
        ),
        "folder": (
            {"directory": "/no/such"},
            "The service folder can't start as root in /no/such: Failed at step CHDIR spawning /bin/sh: No such file",
        ),
    }
    declared = [resource(name=name, **fields) for name, (fields, _) in cases.items()]
    # What is missing then is found out before anything is touched, as long as nothing was ever raised.
    machine.raise_(bundle())
    done = machine.up("\n".join(['name = "test"', *declared]))
    assert done.returncode == 2, done.stdout + done.stderr
    for name, (_, why) in cases.items():
        assert why in done.stdout, done.stdout
        assert machine.unit(name, "ActiveState") == ["inactive"]


def test_a_port_held_by_another_program_is_told_with_it(machine: Machine) -> None:
    machine.sh("systemd-run --quiet --unit other python3 -m http.server 8000")
    machine.wait(lambda: machine.sh("ss -Hltn sport = :8000") != "")
    done, pid = machine.up(bundle(ports=["8000"])), machine.main("other")
    machine.sh("systemctl stop other")
    assert done.returncode == 1
    assert f"The service web needs port [::]:8000/tcp, which is held by process {pid} (" in done.stderr


def test_its_own_port_is_no_conflict(machine: Machine) -> None:
    text = bundle("exec python3 -m http.server 8000", ports=["8000"], ready={"tcp": "8000"})
    machine.raise_(text)
    assert machine.raise_(f'{text}stop_signal = "SIGINT"\n')["service:web"][0] == "changed"


@pytest.mark.parametrize("where", [WEB, Path("/lib/systemd/system/web.service")])
def test_a_unit_of_the_machine_s_own_is_never_touched(machine: Machine, where: Path) -> None:
    own = "[Service]\nExecStart=/bin/sleep 99999\n"
    machine.write(where, own)
    machine.sh("systemctl daemon-reload; systemctl start web")
    pid = machine.main("web")
    done = machine.up(bundle())
    left = (machine.main("web"), machine.read(where))
    machine.sh(f"systemctl stop web; rm {where}; systemctl daemon-reload")
    assert (done.returncode, str(where) in done.stderr) == (1, True), done.stderr
    assert left == (pid, own)


def test_another_agent_s_unit_is_told_and_left(machine: Machine) -> None:
    machine.raise_(bundle())
    pid = machine.main("web")
    done = machine.agent("up", "--once", "--state", "/srv/other", "--bundle", "/root/bundle")
    assert done.returncode == 1
    assert f"{WEB} is of the agent in {STATE}, another state folder" in done.stderr
    assert machine.main("web") == pid


def test_one_that_ran_detached_is_made_a_unit(machine: Machine) -> None:
    # As a machine that systemd did not run, for as long as it is looked at.
    machine.sh("mv /run/systemd/system /run/systemd/away")
    text = bundle("sleep 77777 & exec sleep 77777")
    machine.raise_(text)
    machine.sh("mv /run/systemd/away /run/systemd/system")
    assert not machine.exists(WEB)
    assert len(machine.sh("pgrep -fx 'sleep 77777'").split()) == 2
    assert machine.raise_(text)["service:web"] == ("changed", "it runs detached, from before systemd")
    machine.wait(lambda: len(machine.processes("web")) == 2)
    assert set(machine.sh("pgrep -fx 'sleep 77777'").split()) == set(map(str, machine.processes("web")))
    assert not machine.exists(STATE / "run/services/web.json")
    assert machine.raise_(text)["service:web"][0] == "kept"


def test_all_of_it_ends_even_what_does_not_want_to(machine: Machine) -> None:
    machine.raise_(bundle("trap '' TERM; setsid sleep 77777 & while :; do sleep 77777; done", stop_timeout=1))
    machine.wait(lambda: len(machine.processes("web")) == 3)
    assert machine.agent("reset").returncode == 0
    assert machine.sh("pgrep -fx 'sleep 77777' || true") == ""
    assert machine.unit("web", "LoadState", "ActiveState") == ["not-found", "inactive"]


def test_a_package_s_daemon_is_not_started_by_its_installation(machine: Machine) -> None:
    machine.raise_('name = "test"\n[[resource]]\nkind = "package"\nname = "cron"\n')
    assert machine.unit("cron", "LoadState", "ActiveState") == ["loaded", "inactive"]
    # Without the agent one would be: nothing else on this machine keeps it from that.
    machine.sh("apt-get install -y at >/dev/null 2>&1")
    assert machine.unit("atd", "ActiveState") == ["active"]


def test_installing_wants_a_node_first(machine: Machine) -> None:
    done = machine.agent("install")
    assert (done.returncode, "`agent up` makes one" in done.stderr) == (1, True)
    assert not machine.exists(UNITS / "mesh-agent.service")


def test_what_is_somebody_else_s_stays_theirs_when_installing(machine: Machine) -> None:
    machine.raise_(bundle())
    machine.write(Path("/usr/local/bin/agent"), "theirs")
    assert "/usr/local/bin/agent is something else and was left" in machine.ask("/root/agent", "install")
    machine.ask("/root/agent", "uninstall")
    assert machine.read(Path("/usr/local/bin/agent")) == "theirs"
    machine.write(UNITS / "mesh-agent.service", "[Service]\nExecStart=/bin/true\n")
    done = machine.agent("install")
    assert (done.returncode, "mesh-agent.service is somebody else's" in done.stderr) == (1, True)
    assert machine.run("/root/agent", "uninstall").returncode == 0
    assert machine.read(UNITS / "mesh-agent.service") == "[Service]\nExecStart=/bin/true\n"
    machine.sh(f"rm {UNITS}/mesh-agent.service /usr/local/bin/agent; systemctl daemon-reload")


def test_installing_without_systemd_says_what_to_do(machine: Machine) -> None:
    machine.raise_(bundle())
    machine.sh("mv /run/systemd/system /run/systemd/away")
    done = machine.agent("install")
    machine.sh("mv /run/systemd/away /run/systemd/system")
    assert done.returncode == 1
    assert f"have what starts its other programs at boot run `{STATE}/agent up --state {STATE}`" in done.stderr
    assert not machine.exists(UNITS / "mesh-agent.service")
