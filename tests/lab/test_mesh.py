"""Three machines and an application across two of them, by what the README has people type.

A database on one machine and what shows it on another are containers of two modules; they share a secret that the mesh
keeps, and the one finds the other by its node's address and the port that it was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import images
from tests.lab.machines import LONG, Lab, Machine

# The first test waits for the machines' image.
pytestmark = pytest.mark.timeout(900)

AGENT = "mesh-agent.service"
LINK = "/usr/local/bin/agent"

# busybox's web server asks for a password and gives what lies in the volume, which its first start put there.
DATABASE = """
name = "database"

[params]
first = "kept"

[ports]
http = "80/tcp"

[[resource]]
kind = "image"
name = "localhost/app:latest"

[[resource]]
kind = "file"
name = "/etc/${assignment.name}.conf"
mode = "0600"
template = true
content = "/:web:${secret.entry}\\n"

[[resource]]
kind = "container"
name = "server"
image = "localhost/app:latest"
ports = ["${port.http}:80"]
mounts = ["/etc/${assignment.name}.conf:/etc/httpd.conf:ro", "${assignment.name}-data:/data"]
watches = ["/etc/${assignment.name}.conf"]
environment = { FIRST = "${param.first}" }
command = ["/bin/sh", "-c", '''
[ -e /data/said ] || echo "$FIRST" >/data/said
exec httpd -f -h /data -c /etc/httpd.conf''']
stop_timeout = 1
"""

FRONT = """
name = "front"

[params]
greeting = "hello"

[ports]
http = "80/tcp"

[[resource]]
kind = "image"
name = "localhost/app:latest"

[[resource]]
kind = "container"
name = "server"
image = "localhost/app:latest"
ports = ["${port.http}:80"]
environment = { GREETING = "${param.greeting}", FROM = "${address.b}:${port.b.db.http}", ENTRY = "${secret.entry}" }
command = ["/bin/sh", "-c", '''
mkdir -p /www/cgi-bin
cat >/www/cgi-bin/shown <<'END'
#!/bin/sh
echo; echo "$GREETING: $(timeout 5 wget -q -O - "http://web:$ENTRY@$FROM/said")"
END
chmod 755 /www/cgi-bin/shown
exec httpd -f -h /www''']
stop_timeout = 1
"""


class Mesh:
    """The founder `a`, with `b` and `c`, each with an agent that systemd runs."""

    def __init__(self, lab: Lab, file: Path, archive: Path) -> None:
        self._lab, self._file, self._archive = lab, file, archive
        self.a = self.fresh("a")
        self.a.raise_()
        self._install(self.a)
        self.b, self.c = self.fresh("b"), self.fresh("c")
        for machine in (self.b, self.c):
            self.join(machine)

    def fresh(self, name: str) -> Machine:
        """A machine with the file, and with the image that its containers run by: there is no registry."""
        machine = self._lab.machine(name, self._file)
        machine.put(self._archive, Path("/root/app.tar"))
        machine.ask("podman", "import", "--quiet", "/root/app.tar", "localhost/app:latest")
        return machine

    def join(self, machine: Machine, *options: str) -> None:
        token = self.control("token", "create", machine.name, *options)
        done = machine.run("/root/agent", "up", "--once", "--token-file", "-", stdin=token)
        assert done.returncode == 0, done.stdout + done.stderr
        self._install(machine)

    def control(self, *words: str, stdin: str = "") -> str:
        return self.a.ask(LINK, "control", *words, stdin=stdin)

    def nodes(self) -> dict[str, Any]:
        return {node["name"]: node for node in json.loads(self.control("node", "list", "-o", "json"))["nodes"]}

    def port(self, node: str) -> int:
        rows = json.loads(self.control("port", "list", "-o", "json"))
        return next(row["port"] for row in rows if row["node"] == node)

    def shown(self) -> str:
        """What a visitor from the founder gets to see; "" when that is nothing."""
        url = f"http://{self.c.address}:{self.port('c')}/cgi-bin/shown"
        script = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=10).read().decode(), end='')"
        return self.a.run("python3", "-c", script).stdout.strip()

    def _install(self, machine: Machine) -> None:
        machine.ask("/root/agent", "install")
        machine.wait(lambda: machine.status()["link"]["state"].startswith("up"), LONG)


def started(machine: Machine, container: str) -> str:
    """When it was started, and as which process: it has another one after any restart."""
    return machine.ask("podman", "inspect", "--format", "{{.State.StartedAt}} {{.State.Pid}}", container)


@pytest.fixture(scope="module")
def mesh(lab: Lab, built_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    made = Mesh(lab, built_file, images.busybox(tmp_path_factory.mktemp("app")))
    yield made
    for machine in (made.a, made.b, made.c):
        machine.remove()


def test_an_application_across_two_machines(mesh: Mesh) -> None:
    for name, text in (("database", DATABASE), ("front", FRONT)):
        mesh.a.write(Path(f"/root/{name}.toml"), text)
        mesh.control("module", "add", f"/root/{name}.toml")
    mesh.control("secret", "set", "entry", stdin="opensesame\n")
    mesh.control("assign", "database", "b", "--as", "db")
    mesh.control("assign", "front", "c", "--as", "web")
    assert mesh.shown() == "hello: kept"
    assert {node["state"] for node in mesh.nodes().values()} == {"here"}


def test_an_update_replaces_what_changed_and_nothing_else(mesh: Mesh) -> None:
    database, front = started(mesh.b, "db-server"), started(mesh.c, "web-server")
    mesh.a.write(Path("/root/front.toml"), FRONT.replace('"hello"', '"good day"'))
    mesh.control("module", "add", "/root/front.toml")
    assert mesh.shown() == "hello: kept"
    mesh.control("module", "roll", "front")
    assert mesh.shown() == "good day: kept"
    assert started(mesh.b, "db-server") == database
    assert started(mesh.c, "web-server") != front


def test_a_secret_that_is_set_anew_reaches_both(mesh: Mesh) -> None:
    mesh.control("secret", "set", "entry", stdin="another\n")
    mesh.a.wait(lambda: mesh.shown() == "good day: kept")
    inside = mesh.c.ask("podman", "exec", "web-server", "/bin/sh", "-c", "echo $ENTRY")
    assert inside == "another"


@pytest.mark.parametrize("how", ["systemctl restart", "systemctl kill --signal=SIGKILL --kill-whom=main"])
def test_whatever_ends_the_agent_ends_no_container(mesh: Mesh, how: str) -> None:
    before, agent = started(mesh.c, "web-server"), mesh.c.main(AGENT)
    monitor = int(mesh.c.ask("podman", "inspect", "--format", "{{.State.ConmonPid}}", "web-server"))
    # Whatever else systemd does to the agent's unit, what watches over the container is no part of it.
    assert AGENT not in mesh.c.ask("cat", f"/proc/{monitor}/cgroup")
    mesh.c.sh(f"{how} {AGENT}")
    mesh.c.wait(lambda: mesh.c.main(AGENT) not in (0, agent))
    mesh.c.wait(lambda: mesh.c.status()["link"]["state"].startswith("up"), LONG)
    assert started(mesh.c, "web-server") == before
    assert mesh.shown() == "good day: kept"


def test_a_reboot_brings_the_containers_back(mesh: Mesh) -> None:
    mesh.b.reboot()
    mesh.a.wait(lambda: mesh.shown() == "good day: kept", LONG)


def test_a_machine_that_is_lost_is_replaced(mesh: Mesh) -> None:
    old = mesh.b.address
    mesh.b.remove()
    mesh.b = mesh.fresh("b")
    refused = mesh.a.run(LINK, "control", "token", "create", "b")
    assert (refused.returncode, "--replace" in refused.stderr) == (1, True)
    mesh.join(mesh.b, "--replace")
    # The volume went with the machine; all else is as it was, at another address.
    mesh.a.wait(lambda: mesh.shown() == "good day: kept", LONG)
    assert mesh.b.address != old
    assert mesh.nodes()["b"]["state"] == "here"


def test_what_is_unassigned_leaves_nothing(mesh: Mesh) -> None:
    refused = mesh.a.run(LINK, "control", "unassign", "db", "b")
    assert (refused.returncode, "web" in refused.stderr) == (1, True)
    mesh.control("unassign", "web", "c")
    mesh.control("unassign", "db", "b")
    for machine in (mesh.b, mesh.c):
        assert machine.ask("podman", "ps", "--all", "--quiet") == ""
    assert json.loads(mesh.control("port", "list", "-o", "json")) == []
    # Data is kept until the machine is reset.
    assert mesh.b.ask("podman", "volume", "ls", "--quiet") == "db-data"
