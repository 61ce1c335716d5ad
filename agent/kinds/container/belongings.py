"""What a container brings along at its engine: networks and volumes, which are made for it and outlive it.

- One that is absent is made and marked as this state folder's; one that is there is used, and stays.
- Networks go with the last container in them. Volumes hold data: they go only when that is asked for.
"""

from __future__ import annotations

from collections.abc import Collection

from agent.kinds.engine import LABEL, Engine, EngineFailed
from agent.kinds.kind import Machine
from agent.resources import Bridge, Volume, specs


def make(engine: Engine, spec: specs.Container, machine: Machine) -> None:
    """Have the networks and volumes that it names."""
    network = spec.network
    if isinstance(network, Bridge) and network.name and engine.inspect("network", network.name) is None:
        words = ["network", "create", "--label", _label(machine), network.name]
        engine.run(words, f"make the network {network.name}")
    for mount in spec.mounts:
        if isinstance(mount, Volume) and engine.inspect("volume", mount.name) is None:
            words = ["volume", "create", "--label", _label(machine), mount.name]
            engine.run(words, f"make the volume {mount.name}")


def remove_networks(engine: Engine, machine: Machine) -> None:
    """Remove this state folder's networks that no container is in."""
    for name in _ours(engine, "network", machine):
        if not engine.containers(f"network={name}"):
            engine.run(["network", "rm", name], f"remove the network {name}")


def remove_volumes(engine: Engine, anonymous: Collection[str], machine: Machine) -> str:
    """Remove this state folder's volumes, and these, that no container uses; what is left, as a sentence, or ""."""
    left = []
    named = _ours(engine, "volume", machine)
    for name in [*named, *(one for one in anonymous if engine.inspect("volume", one))]:
        if engine.containers(f"volume={name}"):
            continue
        try:
            engine.run(["volume", "rm", name], f"remove the volume {name}")
        except EngineFailed as error:
            left.append(f"{error}; take it away with `{engine.name.value} volume rm {name}`.")
    return " ".join(left)


def kept_volumes(engine: Engine, spec: specs.Container, anonymous: Collection[str], machine: Machine) -> str:
    """Which volumes of ours stay behind it, as a sentence; "" when none does or another container still uses them."""
    ours = set(_ours(engine, "volume", machine))
    named = [mount.name for mount in spec.mounts if isinstance(mount, Volume) and mount.name in ours]
    names = [*dict.fromkeys(named), *(one for one in anonymous if engine.inspect("volume", one))]
    names = [name for name in names if not engine.containers(f"volume={name}")]
    if not names:
        return ""
    which = "its volume was" if len(names) == 1 else "its volumes were"
    words = " ".join(names)
    return f"{which} kept, because there is data in it; take it away with `{engine.name.value} volume rm {words}`."


def _ours(engine: Engine, kind: str, machine: Machine) -> list[str]:
    words = [kind, "ls", "--filter", f"label={_label(machine)}", "--format", "{{.Name}}"]
    return engine.run(words, f"list its {kind}s").stdout.decode(errors="replace").split()


def _label(machine: Machine) -> str:
    return f"{LABEL}={machine.state}"
