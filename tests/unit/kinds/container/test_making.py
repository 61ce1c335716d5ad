"""The command line of a container, from what is declared of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.kinds.container import making
from agent.kinds.kind import Machine, Mark
from agent.resources import Context, parse_resource, specs

MACHINE = Machine(Path("/state"), b"key", lambda name: iter(()))
MARK = Mark("/state", "container:web", found=False, stamp="ab")
LABELS = [
    "--label",
    'mesh-agent={"found":false,"id":"container:web","stamp":"ab","state":"/state"}',
    "--label",
    "mesh-agent.watched=",
]
START = ["create", "--name", "web", "--pull=never"]


def spec(**more: Any) -> specs.Container:
    item = {"kind": "container", "name": "web", "image": "app:1", **more}
    found = parse_resource(item, "resource[0]", Context(Path("/state"))).spec
    assert isinstance(found, specs.Container)
    return found


def words(wanted: specs.Container, **more: Any) -> list[str]:
    given: dict[str, Any] = {"image": "0cea", "late": {}, "mark": MARK, "watched": "", "kept": {}, **more}
    return making.arguments(wanted, **given)


def test_little_declared_is_little_said() -> None:
    stop = ["--restart", "always", "--stop-signal", "SIGTERM", "--stop-timeout", "30"]
    assert words(spec()) == [*START, *stop, *LABELS, "0cea"]


def test_all_that_can_be_declared() -> None:
    wanted = spec(
        entrypoint=["/bin/tini", "--"],
        command=["serve", "${fingerprint.web}"],
        environment={"A": "plain $ words", "B": "${secret.b}-x"},
        mounts=["/srv/a:/a:ro", "data:/data"],
        ports=["127.0.0.1:8080:80", "[::1]:53:5353/udp", "443:8443"],
        network="front",
        user="web:www",
        hostname="web-1",
        labels={"team": "a, b"},
        limits={"memory": "1g", "cpus": 1.5, "pids": 100, "nofile": 1024},
        restart="no",
        stop_signal="SIGINT",
        stop_timeout=7,
    )
    late = {"secret.b": "hush", "fingerprint.web": "cd"}
    assert words(wanted, late=late, kept={"/data": "old", "/unnamed": "ff"}, processes=9) == [
        *START,
        *("--restart", "no", "--stop-signal", "SIGINT", "--stop-timeout", "7"),
        *LABELS,
        *("--label", "team=a, b"),
        *("--env", "A=plain $ words", "--env", "B"),
        *("--network", "front"),
        *("--publish", "127.0.0.1:8080:80/tcp"),
        *("--publish", "[::1]:53:5353/udp"),
        *("--publish", "0.0.0.0:443:8443/tcp"),
        *("--volume", "/srv/a:/a:ro", "--volume", "data:/data", "--volume", "ff:/unnamed"),
        *("--memory", "1073741824", "--cpus", "1.5", "--pids-limit", "100"),
        *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=9:9"),
        *("--user", "web:www", "--hostname", "web-1"),
        *("--entrypoint", "/bin/tini", "0cea", "--", "serve", "cd"),
    ]
    assert making.secrets(wanted, late) == {"B": "hush-x"}


def test_a_secret_is_in_no_argument() -> None:
    wanted = spec(environment={"A": "${secret.a}", "B": "user:${secret.a}@host"})
    assert "hush" not in " ".join(words(wanted, late={"secret.a": "hush"}))


def test_the_hosts_network_is_published_nowhere() -> None:
    said = words(spec(network="host", ports=["80"]))
    assert "--publish" not in said
    assert said[said.index("--network") + 1] == "host"


def test_what_is_watched_is_told_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "conf"
    wanted = spec(watches=[str(path)])
    absent = making.watched(wanted, MACHINE)
    path.write_text("one")
    one = making.watched(wanted, MACHINE)
    path.write_text("two")
    assert len({absent, one, making.watched(wanted, MACHINE), making.watched(spec(), MACHINE)}) == 4
    path.write_text("one")
    assert making.watched(wanted, MACHINE) == one
