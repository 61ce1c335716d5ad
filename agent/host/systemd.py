"""systemd, asked and told by its own commands; what they are asked is apart from how their answers read.

- A unit's state is what `systemctl show` says of it; a file of the unit that systemd has not read yet is told apart.
- A line of the journal is found by the name that its unit gives it: of what ended at once the unit may not be known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.host import commands, machine, processes
from agent.host.commands import CommandFailed
from agent.host.processes import Process

FOLDER = Path("/etc/systemd/system")
"""Where the machine's own units lie; they win over those of packages (systemd.unit(5))."""

_PROPERTIES = (
    *("Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "FragmentPath"),
    *("MainPID", "InvocationID", "NeedDaemonReload"),
)
_LINES = 50
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as systemd has it.

    `load` is "loaded", "not-found", "masked" and others; `active` "active", "activating", "inactive", "failed" and
    others (systemd(1)). `main` is its main process while that lives, `invocation` tells this start of it from all
    others. `stale`: its files are no longer what systemd has read.
    """

    load: str
    active: str
    sub: str
    enabled: bool
    fragment: Path | None
    main: Process | None
    invocation: str
    stale: bool

    @property
    def known(self) -> bool:
        """Whether there is anything by this name, be it only in systemd's memory."""
        return self.load != "not-found" or self.active != "inactive"


def in_charge() -> bool:
    """Whether systemd runs this machine, and we may tell it what to do."""
    return os.geteuid() == 0 and machine.has_systemd()


def show(unit: str) -> Unit:
    """What systemd says of a unit."""
    argv = ["systemctl", "show", f"--property={','.join(_PROPERTIES)}", unit]
    values = parse_properties(commands.run(argv).stdout.decode(errors="replace"))
    pid = int(values.get("MainPID", "0") or "0")
    fragment = values.get("FragmentPath", "")
    return Unit(
        load=values.get("LoadState", ""),
        active=values.get("ActiveState", ""),
        sub=values.get("SubState", ""),
        enabled=values.get("UnitFileState") == "enabled",
        fragment=Path(fragment) if fragment else None,
        main=processes.find(pid) if pid else None,
        invocation=values.get("InvocationID", ""),
        stale=values.get("NeedDaemonReload") == "yes",
    )


def parse_properties(text: str) -> Mapping[str, str]:
    """The answer of `systemctl show`: a property a line, NAME=VALUE."""
    return {name: value for name, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def reload() -> None:
    """Have systemd read every unit's files again; what runs is not touched."""
    commands.run(["systemctl", "daemon-reload"], timeout=_SECONDS)


def enable(unit: str) -> None:
    """Have a unit started at every boot; `reload` must follow."""
    commands.run(["systemctl", "enable", "--quiet", "--no-reload", unit], timeout=_SECONDS)


def disable(unit: str) -> None:
    """Have a unit no longer started at boot; `reload` must follow."""
    commands.run(["systemctl", "disable", "--quiet", "--no-reload", unit], timeout=_SECONDS)


def start(unit: str) -> None:
    """Start a unit and return when its program runs (Type=exec). CommandFailed when that can't be."""
    commands.run(["systemctl", "start", unit], timeout=2 * _SECONDS)


def restart(unit: str, seconds: float) -> None:
    """As `start`; what runs of it ends before, which may take `seconds`."""
    commands.run(["systemctl", "restart", unit], timeout=seconds + 2 * _SECONDS)


def stop(unit: str, seconds: float) -> None:
    """End all of a unit, which may take `seconds`; one that systemd doesn't know is no failure."""
    if show(unit).known:
        commands.run(["systemctl", "stop", unit], timeout=seconds + _SECONDS)


def forget(unit: str) -> None:
    """Have systemd no longer remember that a unit failed."""
    commands.run(["systemctl", "reset-failed", unit], check=False)


def unit_of(pid: int) -> str:
    """The name of the service unit that a process belongs to; "" when it is in none."""
    try:
        return parse_unit(Path("/proc", str(pid), "cgroup").read_text(errors="replace"))
    except OSError:
        return ""


def parse_unit(text: str) -> str:
    """The service unit in the text of /proc/PID/cgroup; a unit may have groups of its own below it."""
    for line in text.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers in ("", "name=systemd"):
            names = [name for name in path.split("/") if name.endswith(".service")]
            if names:
                return names[0]
    return ""


def said_since(moment: float, identifier: str) -> list[str]:
    """The last lines that a unit with this SyslogIdentifier has written since; `moment` is of the monotonic clock."""
    return _journal(moment, f"SYSLOG_IDENTIFIER={identifier}", "_TRANSPORT=stdout")


def complaints_since(moment: float, unit: str) -> list[str]:
    """What systemd has said of a unit since that is an error, without the unit's name before it."""
    lines = _journal(moment, "--priority=err", f"_SYSTEMD_UNIT={unit}", "+", f"UNIT={unit}")
    return [line.removeprefix(f"{unit}: ") for line in lines]


def parse_journal(text: str, moment: float) -> list[str]:
    """The messages since `moment` (seconds, monotonic) of `journalctl --reverse --output=json`, in their order.

    An entry a line; a message that isn't UTF-8 is a list of bytes (systemd's Journal Export Formats).
    """
    found = []
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            if int(entry["__MONOTONIC_TIMESTAMP"]) >= moment * 1_000_000:
                found.append(_message(entry["MESSAGE"]))
    return found[::-1]


def _message(value: object) -> str:
    if isinstance(value, list):
        return bytes(one for one in value if isinstance(one, int) and 0 <= one < 256).decode(errors="replace")
    return value if isinstance(value, str) else ""


def _journal(moment: float, *matches: str) -> list[str]:
    # Not from a cursor on: with matches, systemd 252 leaves out the first entry after it.
    options = ["--quiet", "--no-pager", "--boot", "--reverse", f"--lines={_LINES}"]
    try:
        commands.run(["journalctl", "--sync"], check=False)
        answer = commands.run(["journalctl", *options, "--output=json", "--output-fields=MESSAGE", *matches])
    except CommandFailed:
        return []
    return parse_journal(answer.stdout.decode(errors="replace"), moment)
