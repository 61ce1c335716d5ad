"""A real RabbitMQ for a test session: the one that the native bundle declares, on ports and in folders of its own.

It is started from the bundle's own configuration, command and environment, so what the tests prove of it is true of
what is shipped.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from agent.broker import Address, Login, connect
from agent.control.accounts import Bounds, BrokerAccounts, Management
from agent.errors import Unavailable
from agent.template import parse

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

BUNDLE = Path(__file__).parents[2] / "agent" / "bundles" / "native" / "bundle.toml"
# In the environment of everything that the broker starts, epmd included.
MARK = "MESH_TEST_BROKER"
CONTROL_PASSWORD = "password-of-control"
# Nobody gets the same ports twice, though nobody may have opened its own yet.
_given: set[int] = set()


class Rabbit:
    """One broker. `login` and `management` are the control plane's."""

    def __init__(self) -> None:
        # Below /var/lib, because the broker's account must get through every folder above.
        self.folder = Path(tempfile.mkdtemp(prefix="mesh-agent-rabbit-", dir="/var/lib"))
        self.folder.chmod(0o755)
        self.account = pwd.getpwnam("rabbitmq")
        self.state = self.folder / "state"
        ports = free_ports(4)
        self.broker_port, self.management_port, self.epmd_port, self.distribution_port = ports
        self.document = tomllib.loads(BUNDLE.read_text())
        self._params: dict[str, str] = {
            **{name: str(value) for name, value in self.document["params"].items()},
            "broker_port": str(self.broker_port),
            "management_port": str(self.management_port),
            "epmd_port": str(self.epmd_port),
            "distribution_port": str(self.distribution_port),
            "config": str(self.folder / "etc"),
            "data": str(self.folder / "data"),
            "log": str(self.folder / "log"),
        }
        self.fingerprint = self._make_certificate()
        self._make_folders()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.broker_port)

    @property
    def pins(self) -> frozenset[str]:
        return frozenset({self.fingerprint})

    @property
    def login(self) -> Login:
        return self.login_as("control", CONTROL_PASSWORD)

    @property
    def management(self) -> Management:
        return Management(f"https://127.0.0.1:{self.management_port}", "control", CONTROL_PASSWORD, self.pins)

    def login_as(self, account: str, password: str) -> Login:
        return Login(self.address, account, password, self.pins)

    def accounts(self, bounds: Bounds | None = None) -> BrokerAccounts:
        return BrokerAccounts(self.management, bounds or Bounds())

    def account_names(self) -> frozenset[str]:
        """Every account that the broker has."""
        return frozenset(str(one["name"]) for one in self.accounts()._call("GET", "users"))

    def start(self) -> None:
        """Start it, and wait until one can log in. Data of an earlier run is found again."""
        service = self._resource("service", "broker")
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            MARK: str(self.folder),
            **{name: self._filled(value) for name, value in service["environment"].items()},
        }
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [self._filled(word) for word in service["command"]],
                cwd=self._params["data"],
                env=environment,
                user=self.account.pw_uid,
                group=self.account.pw_gid,
                extra_groups=[],
                umask=0o022,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_until(self._answers, 120, self._told)

    def kill(self) -> None:
        """End it and all that it started at once, as a loss of power would; its data stays.

        Not all of it: a quorum queue that is younger than some two seconds does not come back to life (RabbitMQ 3.10).
        """
        # More than once: what is being started while the list is read is not on it.
        wait_until(self._killed, 30)
        if self._process:
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it properly. Takes some six seconds."""
        if self._process:
            self._process.terminate()
            self._process.wait(timeout=60)
        self.kill()

    def restart(self) -> None:
        """Stop it properly and start it again."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Have it stand still: its ports are open and nobody answers."""
        for pid in self.processes():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGCONT)

    def clear(self) -> None:
        """Leave nothing but the account `control`; started anew if a test ended it."""
        if self._process is None or self._process.poll() is not None:
            self.kill()
            shutil.rmtree(Path(self._params["data"]) / "mnesia")
            self.start()
        accounts = self.accounts()
        for account in self.account_names() - {"control"}:
            accounts.delete_account(account)
        for queue in accounts._call("GET", "queues"):
            accounts.delete_queue(queue["name"])
        accounts._call("DELETE", "exchanges/%2F/mesh", absent_is_fine=True)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)

    def processes(self) -> list[int]:
        """The ids of everything that this broker consists of, epmd included."""
        mark = f"{MARK}={self.folder}".encode()
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and mark in _environment(entry)
        ]

    def queue_length(self, queue: str) -> int:
        """How many messages wait in a queue."""
        with closing(connect(self.login)) as session:
            return session.count(queue)

    def log(self) -> str:
        path = Path(self._params["log"]) / "broker.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def control(self, *arguments: str) -> str:
        """Run the broker's own `rabbitmqctl`."""
        environment = {
            name: self._filled(value) for name, value in self._resource("service", "broker")["environment"].items()
        }
        # What keeps the broker's distribution on loopback is not the tool's.
        environment.pop("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS")
        done = subprocess.run(
            ["/usr/lib/rabbitmq/bin/rabbitmqctl", "--quiet", *arguments],
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment},
            user=self.account.pw_uid,
            group=self.account.pw_gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout

    def _make_certificate(self) -> str:
        secrets = self.state / "secrets" / "rabbitmq"
        secrets.mkdir(parents=True)
        key, certificate = secrets / "broker.key", secrets / "broker.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=mesh", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        for path in (secrets, key):
            os.chown(path, self.account.pw_uid, self.account.pw_gid)
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()

    def _make_folders(self) -> None:
        for resource in self.document["resource"]:
            if resource["kind"] not in ("directory", "file") or resource["name"].startswith("${state}"):
                continue
            path = Path(self._filled(resource["name"]))
            if resource["kind"] == "directory":
                path.mkdir()
            else:
                path.write_text(self._filled(resource["content"]) if resource.get("template") else resource["content"])
            path.chmod(int(resource.get("mode", "0755" if resource["kind"] == "directory" else "0644"), 8))
            shutil.chown(path, *resource.get("owner", "root:root").split(":"))

    def _resource(self, kind: str, name: str) -> Mapping[str, Any]:
        listed = self.document["resource"]
        return next(one for one in listed if (one["kind"], self._filled(one["name"])) == (kind, name))

    def _filled(self, text: str) -> str:
        values = {
            "state": str(self.state),
            "secret.control": CONTROL_PASSWORD,
            "secret.cookie": "a-cookie-for-tests",
            "fingerprint.broker": self.fingerprint,
            **{f"param.{name}": value for name, value in self._params.items()},
        }
        return parse(text, "the bundle").render(values.__getitem__)

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, f"the broker ended\n{self._told()}"
        try:
            connect(self.login).close()
            # It listens for AMQP before its management does.
            self.account_names()
        except Unavailable:
            return False
        return True

    def _killed(self) -> bool:
        processes = self.processes()
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self._process:
            self._process.poll()
        return not processes

    def _told(self) -> str:
        output = self.folder / "output"
        return (output.read_text(errors="replace") if output.exists() else "") + self.log()[-4000:]


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, and that the kernel gives to nobody who doesn't ask for them by number."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(lowest // 2, lowest)
        if port not in _given and not _is_open(port):
            _given.add(port)
            found.append(port)
    return found


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def wait_until(holds: Callable[[], bool], seconds: float, told: Callable[[], str] = lambda: "") -> None:
    """Ask again and again; fail once `seconds` have passed."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain\n{told()}"
        time.sleep(0.05)


def _environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has just ended
        return []
