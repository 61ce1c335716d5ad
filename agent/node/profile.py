"""What a node says of its machine when it asks to join."""

from __future__ import annotations

from agent.fields import JsonValue
from agent.host.machine import Machine


def profile(machine: Machine) -> dict[str, JsonValue]:
    """The machine's facts as they travel: memory in bytes, engines in order of preference."""
    return {
        "arch": machine.architecture,
        "cpus": machine.cpus,
        "memory_bytes": machine.memory_bytes,
        "kernel": machine.kernel,
        "distribution": machine.distribution.title,
        "python": machine.python,
        "engines": list(machine.engines),
        "init": "systemd" if machine.systemd else "none",
        "address": machine.address,
        "ephemeral": list(machine.ephemeral) if machine.ephemeral else None,
    }
