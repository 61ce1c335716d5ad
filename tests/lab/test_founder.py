"""The native bundle on a fresh machine under systemd: raised, kept through what happens to an agent, and taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.conftest import MakeMachine
from tests.lab.machines import LONG, STATE, UNITS, Lab, Machine

# The first test waits for the machines' image.
pytestmark = pytest.mark.timeout(900)

AGENT = "mesh-agent.service"
LINK = Path("/usr/local/bin/agent")
SERVICES = ("broker.service", "control.service")


@pytest.fixture(scope="module")
def founder(lab: Lab, built_file: Path) -> Iterator[Machine]:
    """A machine that founded a mesh, with the agent installed and linked; each test leaves it so."""
    made = lab.machine("a", built_file)
    told = made.raise_()
    assert {what for what, _ in told.values()} == {"created"}
    install(made)
    yield made
    made.remove()


def install(machine: Machine) -> None:
    told = machine.ask("/root/agent", "install")
    assert told.splitlines()[-1].startswith(f"{AGENT} runs the agent now and after every reboot")
    wait_for_link(machine)


def wait_for_link(machine: Machine) -> None:
    machine.wait(lambda: machine.status()["link"]["state"].startswith("up"), LONG)


def running(machine: Machine) -> list[int]:
    """The main processes, and the one that is the broker itself; it has others that come and go."""
    found = [*map(machine.main, SERVICES), int(machine.sh("pgrep -x beam.smp"))]
    assert all(found)
    return found


def test_services_are_units_that_the_machine_starts(founder: Machine) -> None:
    for unit in SERVICES:
        assert founder.unit(unit, "ActiveState", "UnitFileState", "FragmentPath") == [
            "active",
            "enabled",
            str(UNITS / unit),
        ]
        assert founder.read(UNITS / unit).startswith('# mesh-agent: {"found":false,"id":"service:')
    assert founder.unit("broker.service", "User", "WorkingDirectory") == ["rabbitmq", "/var/lib/mesh-broker"]
    assert "Starting broker... completed" in founder.journal("broker.service")
    assert set(founder.states().values()) == {"as declared"}


def test_daemons_of_the_packages_never_ran(founder: Machine) -> None:
    for unit in ("rabbitmq-server.service", "epmd.service", "epmd.socket"):
        assert founder.unit(unit, "LoadState", "ActiveState") == ["masked", "inactive"]
    assert "rabbitmq-server.service: " not in founder.sh("journalctl --quiet --no-pager --output=cat")
    assert founder.sh("ls /var/lib/rabbitmq/mnesia 2>/dev/null || true") == ""
    assert not founder.exists(Path("/usr/sbin/policy-rc.d"))


def test_no_secret_is_where_others_could_read_it(founder: Machine) -> None:
    secrets = [founder.read(STATE / "secrets" / name).strip() for name in ("root/control", "rabbitmq/cookie")]
    assert all(len(secret) == 64 for secret in secrets)
    seen = founder.sh(
        "cat /etc/systemd/system/*.service; systemctl show broker control mesh-agent; journalctl --no-pager;"
        " cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    )
    assert not [secret for secret in secrets if secret in seen]


@pytest.mark.parametrize("how", ["systemctl restart", "systemctl kill --signal=SIGKILL --kill-whom=main"])
def test_whatever_ends_the_agent_ends_nothing_else(founder: Machine, how: str) -> None:
    before, agent = running(founder), founder.main(AGENT)
    founder.sh(f"{how} {AGENT}")
    founder.wait(lambda: founder.main(AGENT) not in (0, agent))
    wait_for_link(founder)
    assert running(founder) == before
    said = founder.sh(f"journalctl --quiet --no-pager --output=cat _PID={founder.main(AGENT)}")
    assert "12/14  service:broker  kept" in said
    assert "14/14  service:control  kept" in said
    assert f"the agent itself is kept running by {AGENT}" in said


def test_the_agent_is_found_by_its_link(founder: Machine) -> None:
    assert founder.sh(f"readlink {LINK}") == str(STATE / "agent")
    told = json.loads(founder.ask(LINK, "control", "node", "list", "-o", "json"))
    assert [(node["name"], node["state"]) for node in told["nodes"]] == [("a", "here")]


def test_installing_twice_changes_nothing(founder: Machine) -> None:
    agent = founder.main(AGENT)
    install(founder)
    assert founder.main(AGENT) == agent


def test_uninstalling_ends_the_agent_alone(founder: Machine) -> None:
    before = running(founder)
    told = founder.ask("/root/agent", "uninstall").splitlines()
    assert told[:2] == [f"{UNITS / AGENT} is gone", f"{LINK} is gone"]
    assert founder.unit(AGENT, "LoadState") == ["not-found"]
    assert not founder.exists(LINK)
    assert founder.status()["agent"] is None
    assert running(founder) == before
    again = founder.agent("uninstall")
    assert (again.returncode, "nothing to take away" in again.stdout) == (0, True)
    assert founder.agent("up", "--once").returncode == 0
    assert running(founder) == before
    install(founder)


def test_installing_takes_over_from_an_agent_in_a_shell(founder: Machine) -> None:
    founder.ask("/root/agent", "uninstall")
    before = running(founder)
    founder.sh("setsid /root/agent up >/root/up.log 2>&1 </dev/null & echo started")
    wait_for_link(founder)
    pid = founder.status()["agent"]
    assert f"(process {pid}) has ended; all that it raised runs on" in founder.ask("/root/agent", "install")
    wait_for_link(founder)
    assert founder.status()["agent"] == founder.main(AGENT) != pid
    assert running(founder) == before


def test_a_declared_service_is_a_unit_too_and_leaves_with_its_declaration(founder: Machine) -> None:
    declared = [{"kind": "service", "name": "sleeper", "command": ["/bin/sleep", "100000"], "user": "nobody"}]
    founder.ask("/root/agent", "control", "declare", "a", "-", stdin=json.dumps(declared))
    pid = founder.main("sleeper.service")
    assert founder.sh(f"stat -c %U /proc/{pid}") == "nobody"
    founder.ask("/root/agent", "control", "declare", "a", "-", stdin=json.dumps(declared))
    assert founder.main("sleeper.service") == pid
    founder.ask("/root/agent", "control", "declare", "a", "-", "--retire", stdin="[]")
    assert founder.unit("sleeper.service", "LoadState", "ActiveState") == ["not-found", "inactive"]
    assert founder.sh("ls /var/lib/mesh-agent/run/units") == "broker.env\nbroker.json\ncontrol.env\ncontrol.json"


def test_another_machine_joins_by_its_own_address(founder: Machine, machine: MakeMachine) -> None:
    joiner = machine("b")
    token = founder.ask("/root/agent", "control", "token", "create", "b")
    done = joiner.run("/root/agent", "up", "--once", "--token-file", "-", stdin=token)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"amqps://{founder.address}:5671 as node.b" in done.stdout
    install(joiner)
    declared = [{"kind": "file", "name": "/root/told", "content": "by a\n"}]
    founder.ask("/root/agent", "control", "declare", "b", "-", stdin=json.dumps(declared))
    assert joiner.read(Path("/root/told")) == "by a\n"


def test_a_reboot_brings_everything_back_by_itself(founder: Machine) -> None:
    declared = [{"kind": "service", "name": "sleeper", "command": ["/bin/sleep", "100000"]}]
    founder.ask("/root/agent", "control", "declare", "a", "-", stdin=json.dumps(declared))
    serial = founder.status()["serial"]
    founder.reboot()
    wait_for_link(founder)
    running(founder)
    assert founder.main("sleeper.service")
    assert founder.status()["serial"] == serial
    # The link may be up while the last resource is still being waited for.
    founder.wait(lambda: set(founder.states().values()) == {"as declared"})
    told = json.loads(founder.ask("/root/agent", "control", "node", "list", "-o", "json"))
    assert [node["state"] for node in told["nodes"] if node["name"] == "a"] == ["here"]
    founder.ask("/root/agent", "control", "declare", "a", "-", "--retire", stdin="[]")


def test_reset_leaves_nothing_but_packages(machine: MakeMachine) -> None:
    made = machine("c")
    units = made.sh(f"find {UNITS} | sort")
    made.raise_()
    install(made)
    refused = made.agent("reset")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"as {AGENT}; end it with `agent uninstall` first" in refused.stderr
    made.sh(f"systemctl stop {AGENT}")
    done = made.agent("reset")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"  {UNITS / AGENT} (the agent's own)" in done.stdout.splitlines()
    assert not made.exists(STATE)
    assert not made.exists(LINK)
    # The package's own timer is its own affair.
    left = set(made.sh(f"find {UNITS} | sort").splitlines()) - set(units.splitlines())
    assert left == {f"{UNITS}/timers.target.wants/logrotate.timer"}
    assert made.sh("systemctl list-unit-files --state=enabled --no-legend 'rabbit*' 'epmd*' 'mesh*' || true") == ""
    assert made.sh("ps -eo comm= | grep -E 'beam|epmd|erl|python' || true") == ""
    assert made.sh("systemctl is-system-running") == "running"
