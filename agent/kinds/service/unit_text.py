"""What a service's unit and the file of its environment say; pure.

- The unit can be read by every user, so nothing of a secret is in it: variables that hold one come from the other file,
  which is root's alone. A fingerprint is no secret and may be in the command.
- As a detached one it has a clean environment, is asked to end by its main process first, and is started again when it
  ends. What that process leaves behind is killed as soon as it is gone: systemd has no way to ask the rest then.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from agent.host import commands, unitfile
from agent.kinds import marks
from agent.kinds.kind import Mark
from agent.kinds.service import running
from agent.kinds.service.unit_record import Place
from agent.resources import specs

_UNIT = """\
{mark}
# Written by the agent, which puts it back when it is changed; `systemctl edit {name}` adds to it beside this file.
[Unit]
Description={name}, raised by the mesh agent
After=network.target
# Never given up, however often it ends.
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
WorkingDirectory={directory}
UMask=0022
{environment}
EnvironmentFile={file}
ExecStart={command}
KillMode=mixed
KillSignal={stop_signal}
TimeoutStopSec={stop_timeout}
Restart=always
RestartSec=2
StandardOutput=journal
StandardError=journal
SyslogIdentifier={name}

[Install]
WantedBy=multi-user.target
"""


def unit(spec: specs.Service, mark: Mark, place: Place, late: Mapping[str, str]) -> str:
    """The text of the unit's file. A late value that is missing raises KeyError."""
    open_ones = {"PATH": commands.PATH, "LANG": "C.UTF-8"}
    open_ones.update((name, value.render(str)) for name, value in spec.environment if not value.references)
    return _UNIT.format(
        mark=marks.encode_line(mark),
        name=spec.name,
        user=spec.user,
        directory=unitfile.path(str(spec.directory)),
        environment="\n".join(f"Environment={unitfile.word(f'{name}={value}')}" for name, value in open_ones.items()),
        file=unitfile.pattern(str(place.environment)),
        command=unitfile.command([program(spec, late), *(word.render(late.__getitem__) for word in spec.command[1:])]),
        stop_signal=spec.stop_signal,
        stop_timeout=spec.stop_timeout,
    )


def environment(spec: specs.Service, stamp: str, watched: Mapping[str, str], late: Mapping[str, str]) -> str:
    """The text of the file of its environment; it tells what runs by which declaration it was started."""
    hidden = {name: value.render(late.__getitem__) for name, value in spec.environment if value.references}
    return unitfile.environment({**hidden, **running.stamps(stamp, watched)})


def program(spec: specs.Service, late: Mapping[str, str]) -> str:
    """Its program's path, found as a detached one's is; its bare name when it is nowhere."""
    name = spec.command[0].render(late.__getitem__)
    if "/" in name:
        return str(spec.directory / name)
    variables = {key: value for key, value in spec.environment if key == "PATH"}
    search = variables["PATH"].render(late.__getitem__) if variables else commands.PATH
    return shutil.which(name, path=search) or name
