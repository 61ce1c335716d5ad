"""`./build.sh bench`: the built file, measured against what it stands on, in one run on one machine.

- A mesh from nothing, packages present, against the broker's own start (the same command, started by hand).
- The agent's memory while nothing happens.
- From `declare` to the stored report, against a bare round trip of one confirmed, persistent message on that broker.
- 10,000 alives that wait, until the control plane has dealt with them, against a bare consumer on the same queue.
- The CPU that a look at 1,000 unchanged files and directories takes, against reading them.
- A start of the file, and an `up --once` that finds 200 files as they should be, against a bare Python's start.
"""

from __future__ import annotations

import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pika

from agent.bundle import pack
from agent.control.config import read_settings
from agent.control.plane import open_control
from agent.resources import Document
from tests.bench.drain import drained
from tests.bench.drift import looked_at
from tests.broker.rabbit import Rabbit
from tests.built.lab import Machine

FILE = Path("dist/agent").absolute()
ROUNDS = 200


def main() -> None:
    """Print every figure, one line each."""
    print(f"{'what':<50} {'measured':>10} {'against':>10} {'ratio':>7}   aim")
    start, bare = _milliseconds([str(FILE), "--version"]), _milliseconds([sys.executable, "-I", "-S", "-c", "pass"])
    _line("warm `agent --version` / a bare Python", start, bare, "ms", "10 ×")
    _line("`up --once`, 200 files in place / a bare Python", _nothing_to_do(), bare, "ms", "30 ×")
    ours, reading = looked_at()
    _line("1,000 unchanged files and directories / read them", ours * 1e3, reading * 1e3, "ms", "60 ms")
    broker = _broker_start()
    machine = Machine(FILE, "bench")
    try:
        mesh = _seconds(lambda: machine.run("up", "--once", "--name", "bench", *machine.settings))
        _line("mesh up / the broker's own start", mesh, broker, "s", "+ 3 s")
        again = _seconds(lambda: machine.run("up", "--once"))
        _line("`up --once` again, nothing to do / the first", again, mesh, "s")
        agent = machine.back()
        declared, trip = _declare(machine), _round_trip(machine)
        _line("declare → report, p50 / bare round trip, p50", declared * 1e3, trip * 1e3, "ms", "5 ×")
        _line("idle agent, resident / bare python3", _resident(agent.process.pid), _bare_resident(), "MB", "36 MB")
        agent.end()
        ours, bare_consumer = drained()
        _line("10,000 alives by the control plane / bare consumer", ours, bare_consumer, "s", "3 ×")
    finally:
        machine.remove()


def _line(what: str, measured: float, against: float, unit: str, aim: str = "") -> None:
    print(
        f"{what:<50} {measured:>7.1f} {unit:<2} {against:>7.1f} {unit:<2} {measured / against:>7.2f}   {aim}",
        flush=True,
    )


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def _milliseconds(command: list[str]) -> float:
    """The median of many runs, after one that warms up."""
    runs = [_seconds(lambda: subprocess.run(command, capture_output=True, check=True)) for _ in range(21)]
    return statistics.median(runs[1:]) * 1e3


def _nothing_to_do() -> float:
    """The median time of an `up --once` that has raised a bundle of 200 files before, in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="mesh-agent-bench-", dir="/var/lib") as name:
        place = Path(name)
        (place / "bundle").mkdir()
        files = "".join(
            f'[[resource]]\nkind = "file"\nname = "{place}/{at}"\ncontent = "{at:04} of 200\\n"\n' for at in range(200)
        )
        (place / "bundle/bundle.toml").write_text(f'name = "files"\n{files}')
        pack(FILE, place / "bundle", place / "agent")
        return _milliseconds([str(place / "agent"), "up", "--once", "--state", str(place / "state")])


def _broker_start() -> float:
    rabbit = Rabbit()
    try:
        return _seconds(rabbit.start)
    finally:
        rabbit.remove()


def _declare(machine: Machine) -> float:
    """The median time from asking for a changed file to its stored report, in seconds."""
    times = []
    with open_control(machine.state) as control:
        for at in range(ROUNDS):
            item = {"kind": "file", "name": str(machine.folder / "file"), "content": f"{at}\n"}
            begun = time.perf_counter()
            control.wait(control.declare("bench", Document({}, (item,)), {}), 30)
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _round_trip(machine: Machine) -> float:
    """The median time for one persistent, confirmed message to a durable queue and back, in seconds."""
    settings = read_settings(machine.state)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    parameters = pika.ConnectionParameters(
        settings.broker.host,
        settings.broker.port,
        credentials=pika.PlainCredentials(settings.account, settings.password),
        ssl_options=pika.SSLOptions(context),
    )
    times, arrived = [], []
    with closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("bench", durable=True)
        channel.basic_consume("bench", lambda _channel, method, _properties, _body: arrived.append(method.delivery_tag))
        for at in range(ROUNDS):
            begun = time.perf_counter()
            channel.basic_publish("", "bench", b"x" * 500, pika.BasicProperties(delivery_mode=2))
            while len(arrived) <= at:
                connection.process_data_events(None)
            channel.basic_ack(arrived[at])
            times.append(time.perf_counter() - begun)
        channel.queue_delete("bench")
    return statistics.median(times)


def _resident(pid: int) -> float:
    """A process's resident memory in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


def _bare_resident() -> float:
    script = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, check=True, text=True)
    return int(done.stdout) / 1000


if __name__ == "__main__":
    main()
