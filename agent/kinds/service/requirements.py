"""What a service needs of the machine before it can be started: its user, its program, its ports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from pathlib import Path

from agent.errors import Refused, Unavailable
from agent.host import accounts, commands, sockets
from agent.host.endpoints import Endpoint, Protocol
from agent.host.sockets import Holder
from agent.kinds.kind import Machine
from agent.resources import EVERY_ADDRESS, Port, Resource, specs


def check(spec: specs.Service, machine: Machine, earlier: Sequence[Resource]) -> None:
    """Whether its user and program are here, or may come with a package.

    Refused for a user that this machine lacks or that we may not become; Unavailable for a missing program.
    """
    if any(isinstance(resource.spec, specs.Package) for resource in earlier):
        return
    uid = accounts.account(spec.user).uid
    if os.geteuid() not in (0, uid):
        raise Refused(f"Starting a service as the user {spec.user} needs root; run the agent as root.")
    _require_program(spec, machine, earlier)


def search_path(spec: specs.Service) -> str | None:
    """Where a program that is no path is looked for; None when a late value decides it."""
    places = next((value for name, value in spec.environment if name == "PATH"), None)
    if places is None:
        return commands.PATH
    return None if places.references else places.render(str)


def holders(ports: Sequence[Port]) -> list[Holder]:
    """Who holds one of these ports now."""
    return sockets.holders(_endpoint(port) for port in ports)


def is_held_by(holder: Holder, ours: Collection[int]) -> bool:
    """Whether a port's holder is one of the processes with these pids."""
    return not set(ours).isdisjoint(holder.pids)


def port_taken(spec: specs.Service, holder: Holder) -> Unavailable:
    """The failure of a service whose port another program holds."""
    return Unavailable(
        f"The service {spec.name} needs port {holder.wanted}, which is held by {holder}; stop that program."
    )


def _require_program(spec: specs.Service, machine: Machine, earlier: Sequence[Resource]) -> None:
    if spec.command[0].references:
        return
    program = spec.command[0].render(str)
    if "/" in program:
        path = Path(program)
        # The agent's own copy and what earlier resources put there come in time.
        coming = {machine.state / "agent", *(one.spec.path for one in earlier if isinstance(one.spec, specs.File))}
        if path not in coming and not os.access(path, os.X_OK):
            raise Unavailable(f"The service {spec.name} can't be started: there is no program {program}; install it.")
        return
    search = search_path(spec)
    if search is not None and shutil.which(program, path=search) is None:
        raise Unavailable(
            f"The service {spec.name} can't be started: {program} is not on this machine "
            f"(looked in {search}); install it."
        )


def _endpoint(port: Port) -> Endpoint:
    # A program that binds every address mostly binds [::], which the kernel counts for both families.
    address = ip_address("::" if port.address == EVERY_ADDRESS else port.address)
    return Endpoint(Protocol(port.protocol), address, port.number)
