from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

import pytest

from agent.errors import Unavailable
from agent.host import processes
from agent.kinds.kind import Verb
from agent.kinds.service import Service
from agent.resources import specs
from tests.unit.kinds.service.workshop import Workshop, until

SLEEP = "exec sleep 1000"
LISTEN = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(1000)
"""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def listener(port: int) -> list[str]:
    return [sys.executable, "-c", LISTEN, str(port)]


@pytest.mark.parametrize("address", ["127.0.0.1:", ""])
def test_one_is_ready_when_its_port_accepts(workshop: Workshop, port: int, address: str) -> None:
    resource = workshop.declare(listener(port), ready={"tcp": f"{address}{port}"}, ports=[f"127.0.0.1:{port}"])
    workshop.up(resource)
    socket.create_connection(("127.0.0.1", port)).close()
    assert workshop.plan(resource).verb is Verb.KEEP


def test_one_is_ready_when_its_command_ends_well_as_the_service_would_run_it(workshop: Workshop) -> None:
    sign = workshop.ground / "signs" / "sign"
    signs = workshop.ground / "signs"
    signs.mkdir()
    signs.chmod(0o777)
    script = f'id -un > "{signs}/$NAME"; pwd >> "{signs}/$NAME"; test -e {sign}'
    resource = workshop.declare(
        f"sleep 0.3; touch {sign}; {SLEEP}",
        user="nobody",
        directory="/usr",
        environment={"NAME": "${secret.name}"},
        ready={"command": ["sh", "-c", script]},
    )
    workshop.up(resource, {"secret.name": "answer"})
    assert (signs / "answer").read_text() == "nobody\n/usr\n"


def test_one_is_ready_when_its_file_is_written_after_the_start(workshop: Workshop) -> None:
    sign = workshop.ground / "sign"
    sign.touch()
    os.utime(sign, (2**32, 2**32))  # Far in the future, as after a clock was set back.
    resource = workshop.declare(SLEEP, ready={"file": str(sign), "timeout": 1})
    with pytest.raises(Unavailable, match=f"{sign} has not been written since the start"):
        workshop.up(resource)
    resource = workshop.declare(f"touch {sign}; {SLEEP}", ready={"file": str(sign)})
    workshop.up(resource)
    sign.unlink()
    resource = workshop.declare(f"sleep 0.2; touch {sign}; {SLEEP} # again", ready={"file": str(sign)})
    workshop.up(resource)
    assert sign.exists()


def test_one_is_ready_when_its_account_can_log_in(workshop: Workshop) -> None:
    tried: list[Mapping[str, str]] = []

    def log_in(when: specs.LoginReady, late: Mapping[str, str], seconds: float) -> None:
        tried.append(late)
        if len(tried) < 3:
            raise Unavailable(f"the broker does not know {when.account} with {late['secret.x']}")

    workshop = Workshop(workshop.ground, workshop.state, Service(log_in, with_systemd=lambda: False))
    login = {
        "address": "amqps://127.0.0.1:5671",
        "account": "control",
        "password": "${secret.x}",
        "fingerprint": "${fingerprint.x}",
    }
    resource = workshop.declare(SLEEP, ready={"login": login})
    late = {"secret.x": "0123456789abcdef", "fingerprint.x": "ab" * 32}
    workshop.up(resource, late)
    assert len(tried) == 3
    workshop.down(resource)
    tried[:] = []
    never = Workshop(workshop.ground, workshop.state, Service(with_systemd=lambda: False))
    resource = workshop.declare(SLEEP, ready={"login": {**login, "address": "amqps://127.0.0.1:1"}, "timeout": 1})
    with pytest.raises(Unavailable, match=r"control can't log in at amqps://127\.0\.0\.1:1:") as failure:
        never.up(resource, late)
    assert "0123456789abcdef" not in str(failure.value)


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        ({"tcp": "127.0.0.1:1"}, r"nothing accepts a connection to 127\.0\.0\.1:1/tcp \(connection refused\)"),
        (
            {"command": ["sh", "-c", "echo not $KEY >&2; exit 7", "${fingerprint.x}"]},
            r"`sh -c .* '\$\{fingerprint\.x\}'` failed with exit status 7: not \$\{secret\.x\}",
        ),
        ({"command": ["no-such-program"]}, "no-such-program is not on this machine"),
        ({"file": "/no/such/file"}, "/no/such/file is not there"),
    ],
)
def test_one_that_is_not_ready_in_time_is_stopped(workshop: Workshop, ready: dict[str, object], words: str) -> None:
    resource = workshop.declare(
        f"echo still at it; {SLEEP}", ready={**ready, "timeout": 1}, environment={"KEY": "${secret.x}"}
    )
    late = {"secret.x": "0123456789abcdef", "fingerprint.x": "ab" * 32}
    with pytest.raises(Unavailable, match=words) as failure:
        workshop.up(resource, late)
    assert str(failure.value).startswith("The service web was not ready within 1 seconds and was stopped: ")
    assert str(failure.value).endswith(f"The last line of {workshop.identity.log}: still at it")
    assert "0123456789abcdef" not in str(failure.value)
    assert workshop.left() == []


def test_one_that_ends_is_not_waited_for(workshop: Workshop) -> None:
    resource = workshop.declare("echo broken; exit 1", ready={"tcp": "127.0.0.1:1", "timeout": 3600})
    with pytest.raises(Unavailable, match=r"ended before it was ready\. The last line of .*: broken$"):
        workshop.up(resource)


def test_a_port_of_another_program_is_named_with_it(workshop: Workshop, port: int) -> None:
    with socket.create_server(("0.0.0.0", port)):
        resource = workshop.declare(SLEEP, ports=[f"127.0.0.1:{port}", "127.0.0.1:1/udp"])
        wanted = workshop.wanted(resource)
        plan = workshop.plan(resource)
        mark = workshop.machine.mark(wanted, found=False)
        with pytest.raises(Unavailable) as failure:
            workshop.kind.apply(wanted, plan, mark, workshop.machine)
    words = f"The service web needs port 127.0.0.1:{port}/tcp, which is held by process {os.getpid()} ("
    assert str(failure.value).startswith(words)
    assert str(failure.value).endswith(f") on 0.0.0.0:{port}/tcp; stop that program.")
    assert workshop.left() == []
    assert not workshop.identity.record.exists()


def test_a_check_counts_only_other_programs(workshop: Workshop, port: int) -> None:
    listening = workshop.declare(listener(port), ports=[f"127.0.0.1:{port}"], ready={"tcp": f"127.0.0.1:{port}"})
    workshop.up(listening)
    workshop.kind.check(listening.spec, workshop.machine, ())  # type: ignore[arg-type]
    heir = workshop.declare(listener(port), name="heir", ports=[str(port)])
    workshop.kind.check(heir.spec, workshop.machine, ())  # type: ignore[arg-type]
    other = Workshop(workshop.ground, workshop.ground / "other", workshop.kind)
    other.state.mkdir()
    with pytest.raises(Unavailable, match=f"The service heir needs port .*:{port}/tcp, which is held by process"):
        other.kind.check(heir.spec, other.machine, ())  # type: ignore[arg-type]
    pid = workshop.main(listening)
    os.kill(pid, 9)
    until(lambda: processes.find(pid) is None)
    other.kind.check(heir.spec, other.machine, ())  # type: ignore[arg-type]
