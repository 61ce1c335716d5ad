"""The agent as a unit of systemd, so that neither a closed shell nor a reboot ends anything.

- The unit runs the agent's own copy in the state folder. Ending or restarting it ends no other process.
- Nothing of somebody else's is touched: a unit or a command of the same name stays as it is, and that is said.
- An agent that was started by hand gives way to the unit, so that there is one, and it is the one that stays.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from agent.errors import Fatal, Refused, Unavailable
from agent.host import files, machine, processes, systemd, unitfile
from agent.host.failures import in_words
from agent.host.processes import Process
from agent.kinds import marks
from agent.kinds.kind import Mark
from agent.node import folder, own_copy
from agent.node.identity import Identity
from agent.node.plans import Asked, consider, plans_for
from agent.node.program import changes

LINK = Path("/usr/local/bin/agent")
_ID = "agent"
_MODE = 0o644
_PATIENCE = 60.0
_POLL = 0.1
_ALIVE = frozenset({"active", "activating", "reloading"})

_UNIT = """\
{mark}
[Unit]
Description=Mesh agent
# It works without a network, and speaks to its mesh once there is one.
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
# What the agent is just running, a package's installation say, ends by itself.
KillMode=process
Restart=always
RestartSec=5
# It ends so when one of its resources fails.
SuccessExitStatus=2

[Install]
WantedBy=multi-user.target
"""


def unit_name(state: Path) -> str:
    """The unit's name: another one for each state folder, the plain one for that which nobody chose."""
    if state == folder.DEFAULT:
        return "mesh-agent.service"
    return f"mesh-agent-{hashlib.sha256(os.fsencode(state)).hexdigest()[:8]}.service"


def unit_text(state: Path) -> str:
    """The unit's file. It bears a mark as everything of ours does, with an id that no resource has."""
    mark = Mark(str(state), _ID, found=False, stamp="")
    command = unitfile.command([str(state / "agent"), "up", "--state", str(state)])
    return _UNIT.format(mark=marks.encode_line(mark), command=command)


def installed(state: Path) -> tuple[Path, ...]:
    """What `install` put on this machine for this state folder and is still there."""
    unit = systemd.FOLDER / unit_name(state)
    return tuple(path for path, there in ((unit, _is_ours(unit, state)), (LINK, _leads_to(state))) if there)


def install(asked: Asked, tell: Callable[[str], None], understood: Callable[[Path], None]) -> None:
    """Make the unit and have it run this file's agent, now and at every boot. Refused, with nothing done, where it
    can't be; `understood` as for `up`.
    """
    state = asked.state
    _refuse_unfit(state)
    plans = plans_for(asked)
    if plans.replaces:
        understood(state)
        consider(asked, plans, lambda _: None, newcomer=True)
        tell(f"this file takes the place of another: {changes(plans.replaces, plans.program)}")
    unit = unit_name(state)
    path, text = systemd.FOLDER / unit, unit_text(state).encode()
    with own_copy.staged(asked.running_file, state, asked.bundle, needed=not plans.is_settled) as settle:
        changed = files.read(path, uid=0) != text
        if changed:
            files.write(path, text, mode=_MODE, uid=0, gid=0)
        if changed or not systemd.show(unit).enabled:
            systemd.enable(unit)
            systemd.reload()
        _link(state, tell)
        runs = systemd.show(unit).main is not None
        if not runs:
            _end_other(state, tell)
        settle()
    if runs and (changed or plans.replaces):
        systemd.restart(unit, _PATIENCE)
    else:
        systemd.start(unit)
    tell(f"{_kept_by(unit)}, `agent uninstall` undoes this")


def unit_running(state: Path, process: Process) -> str:
    """The unit of this state folder, when it is what runs this process; "" otherwise."""
    unit = unit_name(state)
    return unit if systemd.unit_of(process.pid) == unit and _is_ours(systemd.FOLDER / unit, state) else ""


def hand_over(state: Path, unit: str, tell: Callable[[str], None]) -> None:
    """Have the unit run the agent again, whose folder is free. Unavailable when it doesn't."""
    systemd.restart(unit, _PATIENCE)
    deadline = time.monotonic() + _PATIENCE
    while (occupant := folder.occupant(state)) is None or systemd.unit_of(occupant.process.pid) != unit:
        if time.monotonic() >= deadline:
            raise Unavailable(f"{unit} does not run the agent again; `journalctl -u {unit}` shows why")
        time.sleep(_POLL)
    tell(_kept_by(unit))


def uninstall(state: Path, tell: Callable[[str], None]) -> bool:
    """Take unit and link away again, and end the agent that the unit runs; says whether there was anything."""
    there = installed(state)
    if not there:
        return False
    _refuse_other_user()
    remove(state)
    for path in there:
        tell(f"{path} is gone")
    return True


def remove(state: Path) -> None:
    """As `uninstall`, silently; a machine that systemd no longer runs is no failure."""
    unit = unit_name(state)
    path = systemd.FOLDER / unit
    if _is_ours(path, state):
        if systemd.in_charge():
            systemd.stop(unit, _PATIENCE)
            systemd.disable(unit)
        files.remove(path, uid=0)
        _unlink(systemd.FOLDER / "multi-user.target.wants" / unit)
        if systemd.in_charge():
            systemd.reload()
            systemd.forget(unit)
    if _leads_to(state):
        _unlink(LINK)


def _kept_by(unit: str) -> str:
    return f"{unit} runs the agent now and after every reboot; `journalctl -u {unit}` shows what it says"


def what_keeps_the_agent(state: Path) -> str:
    """What becomes of this very agent when its shell is closed, in words."""
    unit = unit_name(state)
    if systemd.unit_of(os.getpid()) == unit:
        return f"the agent itself is kept running by {unit}"
    ends = "the agent itself ends with this shell, and `agent up` takes over again from any other"
    return f"{ends}; `agent install` has systemd keep it running" if systemd.in_charge() else ends


def refuse_running(state: Path) -> None:
    """Fatal while the unit runs the agent, with what ends that."""
    unit = unit_name(state)
    if systemd.in_charge() and _is_ours(systemd.FOLDER / unit, state) and systemd.show(unit).active in _ALIVE:
        raise Fatal(f"an agent is running on {state}, as {unit}; end it with `agent uninstall` first")


def _refuse_unfit(state: Path) -> None:
    _refuse_other_user()
    place = state / "agent"
    if not machine.has_systemd():
        raise Refused(
            "this machine is not run by systemd, so there is no unit to make; have what starts its other programs "
            f"at boot run `{place} up --state {state}`, and again when that ends"
        )
    if Identity(state).self() is None:
        raise Refused(
            f"there is no node at {state} yet; `agent up` makes one (with --token-file to join a mesh), "
            "then `agent install` keeps it"
        )
    occupant = folder.occupant(state)
    if occupant and occupant.program is None:  # it is at something else than `up`: at a reset
        raise folder.running(state, occupant.process)
    if not (str(state).isprintable() and unitfile.can_execute(str(place))):
        raise Refused(f"systemd can't run {place}: its path holds quotes, backslashes or what can't be printed")
    path = systemd.FOLDER / unit_name(state)
    there = systemd.show(path.name).fragment
    if os.path.lexists(path) and not _is_ours(path, state):
        raise Refused(f"{path} is somebody else's; move it away, so that the agent can have that name")
    if there not in (None, path):
        raise Refused(f"this machine has a unit {path.name} of its own ({there}), whose name the agent needs")


def _refuse_other_user() -> None:
    if os.geteuid() != 0:
        raise Refused("only root may do this; run it as root")


def _link(state: Path, tell: Callable[[str], None]) -> None:
    if _leads_to(state):
        return
    if os.path.lexists(LINK):
        tell(f"{LINK} is something else and was left; the command is {state / 'agent'}")
        return
    with in_words("Making the link", LINK):
        LINK.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        LINK.symlink_to(state / "agent")


def _end_other(state: Path, tell: Callable[[str], None]) -> None:
    """Have an agent that was started by hand end as by a signal of its shell; what it is at is finished first."""
    occupant = folder.occupant(state)
    if occupant is None:
        return
    process = occupant.process
    said = f"the agent that was started by hand (process {process.pid})"
    processes.send(process, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while processes.is_alive(process):
        if time.monotonic() >= deadline:
            tell(f"{said} is still at work; the unit waits for its end")
            return
        time.sleep(_POLL)
    tell(f"{said} has ended; all that it raised runs on")


def _is_ours(path: Path, state: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    mark = marks.decode_line(files.read(path, uid=0) or b"")
    return mark is not None and (mark.state, mark.id) == (str(state), _ID)


def _leads_to(state: Path) -> bool:
    return LINK.is_symlink() and LINK.readlink() == state / "agent"


def _unlink(path: Path) -> None:
    with in_words("Removing", path):
        path.unlink(missing_ok=True)
