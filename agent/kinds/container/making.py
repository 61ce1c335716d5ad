"""The command line that makes a container, without making it, and what it is made from.

- Its address and both port numbers are always given; engines' own defaults differ (moby#28589).
- Secrets are named there, never given: their values are in the command's environment.
- Volumes that nobody named are mounted again where they were, so that what is replaced keeps them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from agent.fields import canonical
from agent.kinds import marks, watches
from agent.kinds.engine import LABEL
from agent.kinds.kind import Machine, Mark
from agent.resources import Bind, Bridge, HostNetwork, Published, specs

WATCHED = f"{LABEL}.watched"


def arguments(
    spec: specs.Container,
    *,
    image: str,
    late: Mapping[str, str],
    mark: Mark,
    watched: str,
    kept: Mapping[str, str],
    processes: int | None = None,
) -> list[str]:
    """What follows the engine's name.

    `image` is an id, `kept` are anonymous volumes by their targets, `processes` a limit that must be said beside
    another.
    """
    labels = {**dict(spec.labels), LABEL: marks.encode(mark).decode(), WATCHED: watched}
    words = ["create", "--name", spec.name, "--pull=never", "--restart", spec.restart]
    words += ["--stop-signal", spec.stop_signal, "--stop-timeout", str(spec.stop_timeout)]
    for name, value in sorted(labels.items()):
        words += ["--label", f"{name}={value}"]
    for name, template in spec.environment:
        words += ["--env", name if template.references else f"{name}={template.render(str)}"]
    words += _network(spec.network)
    words += _mounts(spec, kept)
    words += _limits(spec.limits, processes)
    if spec.user:
        words += ["--user", spec.user]
    if spec.hostname:
        words += ["--hostname", spec.hostname]
    program, *more = [word.render(late.__getitem__) for word in spec.entrypoint] or [""]
    if program:
        # Engines take one word there; the others stand before the command's.
        words += ["--entrypoint", program]
    return [*words, image, *more, *(word.render(late.__getitem__) for word in spec.command)]


def secrets(spec: specs.Container, late: Mapping[str, str]) -> dict[str, str]:
    """The values of the variables that the arguments only name."""
    return {name: value.render(late.__getitem__) for name, value in spec.environment if value.references}


def watched(spec: specs.Container, machine: Machine) -> str:
    """A digest of what is in the files that it watches; "" for none."""
    if not spec.watches:
        return ""
    return hashlib.sha256(canonical(dict(watches.digests(spec.watches, machine))).encode()).hexdigest()


def _network(network: specs.Network) -> list[str]:
    if isinstance(network, HostNetwork):
        return ["--network", "host"]
    if isinstance(network, Bridge):
        words = ["--network", network.name] if network.name else []
        for port in network.ports:
            words += ["--publish", _publish(port)]
        return words
    raise AssertionError(network)


def _publish(port: Published) -> str:
    host = port.host
    address = f"[{host.address}]" if ":" in host.address else host.address
    return f"{address}:{host.number}:{port.container}/{host.protocol}"


def _mounts(spec: specs.Container, kept: Mapping[str, str]) -> list[str]:
    words = []
    for mount in spec.mounts:
        source = str(mount.source) if isinstance(mount, Bind) else mount.name
        words += ["--volume", f"{source}:{mount.target}{':ro' if mount.read_only else ''}"]
    targets = {str(mount.target) for mount in spec.mounts}
    for target, name in sorted(kept.items()):
        if target not in targets:
            words += ["--volume", f"{name}:{target}"]
    return words


def _limits(limits: specs.Limits, processes: int | None) -> list[str]:
    words = []
    for option, value in (("--memory", limits.memory), ("--cpus", limits.cpus), ("--pids-limit", limits.pids)):
        if value is not None:
            words += [option, str(value)]
    if limits.nofile is not None:
        words += ["--ulimit", f"nofile={limits.nofile}:{limits.nofile}"]
        if processes is not None:
            words += ["--ulimit", f"nproc={processes}:{processes}"]
    return words
