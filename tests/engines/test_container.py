"""Containers in real engines: made as declared, replaced only when something changed, never another's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Unavailable
from agent.kinds.kind import Wanted
from tests.broker.rabbit import free_ports, wait_until
from tests.engines.archives import docker_archive
from tests.engines.docker import Docker
from tests.engines.podman import Podman
from tests.engines.shop import Item, Shop

# An init that ends at once when it is asked to, as a real one does.
SLEEP = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"]
SECRET: Item = {"kind": "secret", "name": "word"}


def container(name: str = "web", **more: Any) -> Item:
    return {"kind": "container", "name": name, "image": "localhost/base:1", "command": SLEEP, "stop_timeout": 5, **more}


def served(folder: str = "/etc") -> list[str]:
    return ["/bin/sh", "-c", f"trap 'exit 0' TERM; httpd -f -p 80 -h {folder} & wait"]


def get(port: int, path: str = "index.html") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
        return str(answer.read().decode())


def started(shop: Shop, name: str) -> str:
    return str(shop.inspect(name)["State"]["StartedAt"])


def inside(shop: Shop, name: str, *words: str) -> str:
    return shop.engine.run("exec", name, *words)


def test_everything_that_can_be_declared_is_so(shop: Shop) -> None:
    (port,) = free_ports(1)
    served_from = shop.ground / "site"
    served_from.mkdir()
    (served_from / "index.html").write_text("hello")
    item = container(
        entrypoint=["/bin/sh", "-c", 'trap "exit 0" INT; httpd -f -p 80 -h "$1" & wait', "sh"],
        command=["/srv"],
        environment={"WORD": "${secret.word}", "PLAIN": 'with "quotes" and = and, commas'},
        mounts=[f"{served_from}:/srv:ro", "data:/data"],
        ports=[f"127.0.0.1:{port}:80/tcp"],
        network="front",
        user="0:65534",
        hostname="web-1",
        labels={"org.example.team": "a, b"},
        limits={"memory": "64m", "cpus": "0.5", "pids": 40, "nofile": 512},
        restart="on-failure",
        stop_signal="SIGINT",
        ready={"tcp": f"127.0.0.1:{port}"},
    )
    assert shop.raised(SECRET, item) == [("secret:word", "created"), ("container:web", "created")]
    assert get(port) == "hello"
    word = (shop.state / "secrets" / "root" / "word").read_text()
    assert inside(shop, "web", "sh", "-c", "echo $WORD; echo $PLAIN; hostname; id; ulimit -n").splitlines() == [
        word,
        'with "quotes" and = and, commas',
        "web-1",
        "uid=0(root) gid=65534(nogroup)" + (" groups=65534(nogroup)" if shop.engine.name == "docker" else ""),
        "512",
    ]
    with pytest.raises(AssertionError, match="Read-only file system"):
        inside(shop, "web", "touch", "/srv/x")
    found = shop.inspect("web")
    host = found["HostConfig"]
    assert (host["Memory"], host["NanoCpus"] or host["CpuQuota"] * 10_000, host["PidsLimit"]) == (
        64 << 20,
        5 * 10**8,
        40,
    )
    assert host["RestartPolicy"]["Name"] == "on-failure"
    assert list(found["NetworkSettings"]["Networks"]) == ["front"]
    assert found["Config"]["Labels"]["org.example.team"] == "a, b"
    # What an engine keeps of how it was called, and what the container bears, hold no secret.
    assert word not in str({**found["Config"], "Env": None})
    assert shop.reset() == {}
    assert shop.names() == set()
    assert "front" not in shop.engine.run("network", "ls", "--format", "{{.Name}}").split()
    assert shop.engine.run("volume", "ls", "--quiet") == ""


def test_only_what_changed_is_replaced_and_it_keeps_its_volumes(shop: Shop, root: Path) -> None:
    shop.blobs["app.tar"], _ = docker_archive(root, "app:1", Cmd=SLEEP, Volumes={"/unnamed": {}})
    image: Item = {"kind": "image", "name": "app:1", "blob": "app.tar"}
    first: Item = {**container("one", mounts=["data:/named"]), "image": "app:1"}
    other = container("two", mounts=["data:/data"])
    shop.engine.run("run", "--detach", "--name", "theirs", "localhost/base:1", *SLEEP)
    foreign = started(shop, "theirs")
    shop.raised(image, first, other)
    inside(shop, "one", "sh", "-c", "echo kept > /named/x; echo kept > /unnamed/x; touch /gone")
    before, untouched = shop.inspect("one")["Id"], started(shop, "two")
    changed = {**first, "environment": {"NEW": "1"}}
    assert shop.plan(image, changed, other)[1].reason == "it was made as it was declared before"
    assert shop.raised(image, changed, other) == [
        ("image:app:1", "kept"),
        ("container:one", "changed"),
        ("container:two", "kept"),
    ]
    assert shop.inspect("one")["Id"] != before
    assert inside(shop, "one", "cat", "/named/x", "/unnamed/x") == "kept\nkept"
    assert inside(shop, "one", "ls", "/").split().count("gone") == 0
    # Removed by hand, it is made again, with what was in it.
    shop.engine.run("rm", "--force", "one")
    assert shop.raised(image, changed, other)[1] == ("container:one", "created")
    assert inside(shop, "one", "cat", "/unnamed/x") == "kept"
    assert started(shop, "two") == untouched
    # No longer declared: it goes, its data stays, and is named unless another container still uses it.
    shop.up(other)
    left = next(step for step in shop.steps if step.id == "container:one")
    assert left.what == "left"
    assert left.detail.startswith("its volume was kept, because there is data in it; take it away with ")
    assert " data" not in left.detail.rpartition("`")[0].rpartition("volume rm")[2]
    assert shop.names() == {"two", "theirs"}
    assert shop.reset() == {}
    assert (shop.names(), started(shop, "theirs")) == ({"theirs"}, foreign)
    assert "data" not in shop.engine.run("volume", "ls", "--quiet").split()


def test_one_of_somebody_elses_is_never_touched(shop: Shop) -> None:
    shop.engine.run("run", "--detach", "--name", "web", "localhost/base:1", *SLEEP)
    theirs = started(shop, "web")
    words = f"{shop.engine.name} has a container web that is not the agent's; "
    assert shop.failure(container()).startswith(words)
    with pytest.raises(Unavailable, match=words):
        shop.check(container())
    assert shop.reset() == {}
    assert started(shop, "web") == theirs
    shop.engine.run("rm", "--force", "web")
    shop.raised(container())
    ours = started(shop, "web")
    (shop.ground / "second").mkdir()
    second = shop.beside("second")
    assert f"that belongs to the agent of {shop.state}; " in second.failure(container())
    assert second.reset() == {}
    second.ledger.close()
    assert started(shop, "web") == ours


def test_a_start_that_the_engine_refuses_names_port_and_holder(shop: Shop) -> None:
    (port,) = free_ports(1)
    item = container(ports=[f"127.0.0.1:{port}:80"])
    words = f"The container web needs port 127.0.0.1:{port}/tcp, which is held by process {os.getpid()} ("
    with socket.create_server(("127.0.0.1", port)):
        assert shop.failure(item).startswith(words)  # before it is touched
        assert shop.names() == set()
        resource = shop.resources(item)[0]
        asked = shop.reconciler
        kind, machine = asked.kinds["container"], asked.machine
        wanted = Wanted(resource, machine.stamp(resource, {}), {})
        plan = kind.plan(wanted, kind.observe(wanted, machine), None)
        with pytest.raises(Unavailable) as failure:
            kind.apply(wanted, plan, machine.mark(wanted, found=False), machine)
    assert str(failure.value).startswith(words)
    assert f"; stop that program. {shop.engine.name} can't start the container web: " in str(failure.value)
    assert str(failure.value).endswith("address already in use")
    # It was made and never started: cleared, and made again.
    half_made = shop.inspect("web")
    assert half_made["State"]["Status"] == "created"
    assert shop.plan(item)[0].reason == "it was only half made"
    assert shop.raised(item) == [("container:web", "changed")]
    assert shop.inspect("web")["Id"] != half_made["Id"]


def test_what_an_engine_holds_for_us_is_no_conflict(shop: Shop) -> None:
    (port,) = free_ports(1)
    item = container(ports=[f"127.0.0.1:{port}:80"], command=served())
    shop.raised(item)
    shop.check(item, container("heir", ports=[f"127.0.0.1:{port + 1}:80"]))
    # Renamed on the same port: the old one goes first.
    assert shop.raised(container("heir", ports=[f"127.0.0.1:{port}:80"]))[-1] == ("container:heir", "created")
    assert shop.names() == {"heir"}


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from agent.kinds.engine import Engine, Engines
from tests.engines.shop import Shop

class Dying(Engine):
    def run(self, arguments, doing, **more):
        answer = super().run(arguments, doing, **more)
        if arguments[0] == {verb!r}:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

class Deadly(Engines):
    def here(self):
        return tuple(Dying(one.name, one.environment) for one in super().here())

class Stand:
    name, environment = {name!r}, {environment!r}

class Dead(Shop):
    @property
    def engines(self):
        return Deadly(super().engines.environment, super().engines.find)

print(Dead(Path({ground!r}), Stand()).up({item!r}))
"""


@pytest.mark.parametrize("verb", ["create", "start", "rm"])
def test_the_agents_death_at_any_moment_is_recovered_from(shop: Shop, verb: str) -> None:
    before = container(environment={"A": "1"})
    if verb == "rm":
        shop.raised(before)
    item = container(environment={"A": "2"}, ready={"command": ["true"]})
    script = KILLED.format(
        path=sys.path,
        verb=verb,
        name=shop.engine.name,
        environment=dict(shop.engine.environment),
        ground=str(shop.ground),
        item=item,
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    left = shop.inspect("web") if verb != "rm" else None
    assert (left or {"State": {"Status": "gone"}})["State"]["Status"] == {
        "create": "created",
        "start": "running",
        "rm": "gone",
    }[verb]
    did = shop.raised(item)
    # What runs is kept as it is; what was never started is made again.
    assert did == [("container:web", {"create": "changed", "start": "adopted", "rm": "created"}[verb])]
    assert (left is not None and shop.inspect("web")["Id"] == left["Id"]) is (verb == "start")
    assert shop.names() == {"web"}


def test_a_name_that_podman_holds_without_listing_it_is_freed_if_it_was_ours(root: Path, ground: Path) -> None:
    podman = Podman()
    try:
        podman.import_image(root, "localhost/base:1")
        shop = Shop(ground, podman)
        shop.raised(container())
        podman.run("run", "--detach", "--name", "theirs", "localhost/base:1", *SLEEP)
        podman.run("stop", "--all")
        # What podman lists is in its database, the names are its storage's.
        (podman.folder / "storage" / "libpod" / "bolt_state.db").unlink()
        assert shop.names() == set()
        assert shop.raised(container()) == [("container:web", "created")]
        assert "podman holds that name for one that it doesn't list" in shop.failure(container("theirs"))
        assert "theirs" in podman.run("ps", "--all", "--external", "--format", "{{.Names}}")
        podman.run("rm", "--force", "theirs")
        shop.ledger.close()
    finally:
        podman.close()


def test_what_has_stopped_is_started_again_as_it_is(shop: Shop) -> None:
    shop.raised(container())
    inside(shop, "web", "touch", "/mine")
    id = shop.inspect("web")["Id"]
    shop.engine.run("stop", "web")
    assert shop.plan(container())[0].reason == "it had stopped"
    assert shop.raised(container()) == [("container:web", "changed")]
    assert (shop.inspect("web")["Id"], inside(shop, "web", "ls", "/mine")) == (id, "/mine")
    shop.engine.run("pause", "web")
    assert shop.plan(container())[0].reason == "it was paused"
    assert shop.raised(container()) == [("container:web", "changed")]


def test_podmans_are_back_after_a_reboot(podman: Podman, ground: Path) -> None:
    shop = Shop(ground, podman)
    shop.raised(container())
    inside(shop, "web", "touch", "/mine")
    podman.lose_power()
    assert shop.inspect("web")["State"]["Status"] == "created"
    assert shop.raised(container())[0][0] == "container:web"
    assert shop.inspect("web")["State"]["Status"] == "running"
    shop.ledger.close()


def test_one_whose_process_and_monitor_were_killed_is_made_again(podman: Podman, ground: Path) -> None:
    shop = Shop(ground, podman)
    shop.raised(container())
    state = shop.inspect("web")["State"]
    for pid in (state["ConmonPid"], state["Pid"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{state['Pid']}/exe").exists(), 10)
    assert shop.plan(container())[0].reason == "podman had lost its process"
    shop.raised(container())
    shop.ledger.close()


def test_one_killed_by_hand_runs_again(shop: Shop) -> None:
    item = container(restart="no")
    shop.raised(item)
    pid = shop.inspect("web")["State"]["Pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: shop.inspect("web")["State"]["Status"] == "exited", 10)
    shop.raised(item)
    assert shop.inspect("web")["State"]["Pid"] not in (0, pid)


def test_a_lost_ledger_adopts_what_bears_the_mark(shop: Shop) -> None:
    shop.raised(container())
    before = started(shop, "web")
    shop.lose_ledger()
    assert shop.raised(container()) == [("container:web", "adopted")]
    assert started(shop, "web") == before


def test_one_is_replaced_when_a_file_that_it_watches_changes(shop: Shop) -> None:
    path = shop.ground / "conf"
    file: Item = {"kind": "file", "name": str(path), "content": "one"}
    item = container(mounts=[f"{path}:/conf:ro"], watches=[str(path)])
    shop.raised(file, item)
    assert shop.raised({**file, "content": "two"}, item) == [
        (f"file:{path}", "changed"),
        ("container:web", "changed"),
    ]
    assert inside(shop, "web", "cat", "/conf") == "two"


def test_one_in_the_hosts_network_declares_what_it_binds(shop: Shop) -> None:
    (port,) = free_ports(1)
    script = f"trap 'exit 0' TERM; httpd -f -p 127.0.0.1:{port} -h /etc & wait"
    item = container(
        network="host",
        ports=[f"127.0.0.1:{port}"],
        command=["/bin/sh", "-c", script],
        ready={"tcp": f"127.0.0.1:{port}"},
    )
    shop.raised(item)
    assert "root" in get(port, "passwd")
    shop.check(item)
    assert {binding.owner for binding in shop.ledger.bindings()} == {"container:web"}


def test_an_open_port_of_the_engines_is_no_readiness(shop: Shop) -> None:
    (port,) = free_ports(1)
    late = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 2; touch /late; httpd -f -p 80 -h / & wait"]
    shop.raised(container(ports=[f"127.0.0.1:{port}:80"], command=late, ready={"tcp": f"127.0.0.1:{port}"}))
    assert get(port, "late") == ""


def test_readiness_by_a_command_inside_and_by_a_file_of_the_machine(shop: Shop) -> None:
    sign = shop.ground / "signs"
    sign.mkdir()
    script = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 0.5; touch /ready /signs/ready; sleep 1000 & wait"]
    mounts = [f"{sign}:/signs"]
    shop.raised(container("one", command=script, ready={"command": ["test", "-e", "/ready"]}))
    inside(shop, "one", "ls", "/ready")
    shop.raised(container("two", command=script, mounts=mounts, ready={"file": f"{sign}/ready"}))
    assert (sign / "ready").exists()


def test_one_that_ends_or_is_not_ready_is_told_in_its_own_words_and_hides_secrets(shop: Shop) -> None:
    ends = ["/bin/sh", "-c", "echo starting; echo no such word as $WORD >&2; exit 3"]
    item = container(command=ends, environment={"WORD": "${secret.word}"})
    assert shop.failure(SECRET, item) == (
        "The container web ended at once. The last line of its log: no such word as ${secret.word}"
    )
    late = container(ready={"command": ["sh", "-c", "echo not yet >&2; exit 1"], "timeout": 1})
    words = (
        "The container web was not ready within 1 seconds and was stopped: `sh -c 'echo not yet >&2; exit 1'` failed"
    )
    failure = shop.failure(late)
    assert failure.startswith(f"{words} with exit status 1: not yet")
    assert failure.endswith("It wrote nothing to its log.")
    assert shop.inspect("web")["State"]["Status"] == "exited"
    id = shop.inspect("web")["Id"]
    # The next try begins with nothing.
    assert shop.failure(late) == failure
    assert shop.inspect("web")["Id"] != id


def test_what_is_mounted_must_be_there(shop: Shop) -> None:
    item = container(mounts=["/no/such/folder:/x"])
    words = "The container web mounts /no/such/folder, which is not there; declare it before the container."
    assert shop.failure(item) == words
    assert shop.names() == set()
    path = f"{shop.ground}/folder"
    shop.raised({"kind": "directory", "name": path}, container(mounts=[f"{path}:/x"]))


def test_an_engine_that_is_off_is_of_no_concern_to_the_other(podman: Podman, ground: Path) -> None:
    off = Docker()
    try:
        shop = Shop(ground, podman, others=(off,))
        (port,) = free_ports(1)
        item = container(command=served(), ports=[f"127.0.0.1:{port}:80"], ready={"tcp": f"127.0.0.1:{port}"})
        shop.raised(item)
        # Its port is held, by itself, and whose that is is asked everywhere.
        assert shop.raised({**item, "environment": {"NEW": "1"}}) == [("container:web", "changed")]
        assert shop.reset() == {}
        shop.ledger.close()
    finally:
        off.close()


def test_a_docker_without_its_daemon_is_a_failure_that_passes(docker: Docker, ground: Path) -> None:
    shop = Shop(ground, docker)
    shop.raised(container())
    docker.stop()
    try:
        words = "docker is on this machine, but its daemon doesn't answer ("
        with pytest.raises(Unavailable) as failure:
            shop.check(container())
        assert str(failure.value).startswith(words)
        assert str(failure.value).endswith("; start it, as with `systemctl start docker`.")
        assert shop.failure(container()).startswith(words)
        assert list(shop.reset()) == ["container:web"]
    finally:
        docker.start()
    shop.raised(container())
    assert shop.reset() == {}
    assert shop.names() == set()
    shop.ledger.close()
