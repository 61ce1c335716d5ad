from __future__ import annotations

import os
import platform
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.host import machine


def test_the_facts_are_this_machines() -> None:
    facts = machine.look()
    assert facts.architecture == os.uname().machine
    assert 1 <= facts.cpus <= (os.cpu_count() or 1)
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert facts.memory_bytes == pytest.approx(int(total.split()[1]) * 1024, rel=0.01)
    assert f"ID={facts.distribution.id}\n" in Path("/etc/os-release").read_text()
    assert facts.python == platform.python_version()
    assert set(facts.engines) <= {"podman", "docker"}
    assert facts.systemd is Path("/run/systemd/system").is_dir()


def test_the_address_is_one_of_ours_or_none() -> None:
    address = machine.primary_address()
    if address is not None:
        assert not ip_address(address).is_loopback
        assert not ip_address(address).is_unspecified


def test_the_ephemeral_ports_are_where_outgoing_connections_come_from() -> None:
    told = machine.ephemeral_ports()
    assert told is not None
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert told[0] <= server.getsockname()[1] <= told[1]


def test_the_host_label_has_no_dot() -> None:
    assert "." not in machine.host_label()
    assert os.uname().nodename.lower().startswith(machine.host_label())


def test_room_is_told_for_what_exists(ground: Path) -> None:
    assert machine.free_bytes(ground) > 0
    with pytest.raises(Unavailable, match="none is not there"):
        machine.free_bytes(ground / "none")
