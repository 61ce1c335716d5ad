"""Starting a service: marked and recorded before it runs, and then its own master.

- The agent's death, at any moment, leaves it either not running or running and recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from agent.host import cgroups, detached, directories
from agent.host.processes import Process
from agent.kinds import watches
from agent.kinds.service import logs, record, running
from agent.kinds.service.record import Identity, Start
from agent.resources import specs


def start(
    spec: specs.Service, stamp: str, watched: Mapping[str, str], late: Mapping[str, str], identity: Identity
) -> Start:
    """Start it, when nothing of it runs; `watched` are the digests of what it watches, from before.

    CommandFailed when its program can't be executed.
    """
    directories.make(identity.log.parent, mode=0o700, uid=os.geteuid(), gid=os.getegid())
    logs.rotate(identity.log)
    boot, log_size, touched = record.boot_id(), logs.size(identity.log), touched_before(spec)
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


def touched_before(spec: specs.Service) -> str:
    """How the file that says that it is ready looks now; "" when it has none."""
    when = spec.ready.when if spec.ready else None
    return watches.look_of(when.path) if isinstance(when, specs.FileReady) else ""
