"""Starting a service: marked and recorded before it runs, and then its own master.

- The agent's death, at any moment, leaves it either not running or running and recorded.
- A port that another program holds is found out before, and its holder named.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address

from agent.host import cgroups, detached, directories, sockets
from agent.host.endpoints import Endpoint, Protocol
from agent.host.failures import in_words
from agent.host.processes import Process
from agent.host.sockets import Holder
from agent.kinds.service import record, running
from agent.kinds.service.record import Identity, Start
from agent.resources import EVERY_ADDRESS, Port, specs


def start(spec: specs.Service, stamp: str, late: Mapping[str, str], identity: Identity) -> Start:
    """Start it, when nothing of it runs. CommandFailed when its program can't be executed."""
    watched = record.digests(spec.watches)
    directories.make(identity.log.parent, mode=0o700, uid=os.geteuid(), gid=os.getegid())
    boot, log_size, touched = record.boot_id(), size_of_log(identity), touched_before(spec)
    group = cgroups.make(identity.group)

    def record_before_it_runs(process: Process) -> None:
        if group is not None:
            cgroups.enter(group, process.pid)
        record.write(identity.record, Start(process, boot, stamp, watched, log_size, touched))

    process = detached.spawn(
        [word.render(late.__getitem__) for word in spec.command],
        environment={
            **{name: value.render(late.__getitem__) for name, value in spec.environment},
            **running.marks(identity, stamp, watched),
        },
        user=spec.user,
        directory=spec.directory,
        log=identity.log,
        record=record_before_it_runs,
    )
    return Start(process, boot, stamp, watched, log_size, touched)


def holders(ports: Sequence[Port]) -> list[Holder]:
    """Who holds one of these ports now."""
    return sockets.holders(_endpoint(port) for port in ports)


def is_held_by(holder: Holder, ours: Collection[Process]) -> bool:
    """Whether a port's holder is one of these processes."""
    return not {process.pid for process in ours}.isdisjoint(holder.pids)


def touched_before(spec: specs.Service) -> str:
    """How the file that says that it is ready looks now; "" when it has none."""
    when = spec.ready.when if spec.ready else None
    return record.look_of(when.path) if isinstance(when, specs.FileReady) else ""


def size_of_log(identity: Identity) -> int:
    """The bytes in its log now."""
    with in_words("Looking at the log", identity.log):
        try:
            return identity.log.lstat().st_size
        except FileNotFoundError:
            return 0


def _endpoint(port: Port) -> Endpoint:
    # A program that binds every address mostly binds [::], which the kernel counts for both families.
    address = ip_address("::" if port.address == EVERY_ADDRESS else port.address)
    return Endpoint(Protocol(port.protocol), address, port.number)
