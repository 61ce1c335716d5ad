from __future__ import annotations

from agent.fields import canonical, parse_json
from agent.host.machine import Distribution, Machine, look
from agent.node.profile import profile


def test_the_machines_facts_travel_under_their_own_names() -> None:
    machine = Machine(
        architecture="x86_64",
        cpus=4,
        memory_bytes=2**34,
        kernel="6.1.0",
        distribution=Distribution("debian", (), "12", "Debian GNU/Linux 12 (bookworm)"),
        python="3.11.2",
        engines=("podman", "docker"),
        systemd=True,
        address=None,
        ephemeral=(32768, 60999),
    )
    assert profile(machine) == {
        "arch": "x86_64",
        "cpus": 4,
        "memory_bytes": 17179869184,
        "kernel": "6.1.0",
        "distribution": "Debian GNU/Linux 12 (bookworm)",
        "python": "3.11.2",
        "engines": ["podman", "docker"],
        "init": "systemd",
        "address": None,
        "ephemeral": [32768, 60999],
    }


def test_this_machines_profile_can_be_sent() -> None:
    here = profile(look())
    assert parse_json(canonical(here).encode("utf-8")) == here
