"""What is asked of a machine, who that makes it, and what it is to raise: settled before anything is touched."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from agent.bundle import Bundle
from agent.database import NotMade
from agent.errors import Refused
from agent.host import sockets
from agent.kinds import KINDS
from agent.kinds.kind import Machine
from agent.node import own_copy, substrate
from agent.node.identity import Identity, Role, Self
from agent.node.ledger import open_ledger
from agent.node.origins import last_declared, taken
from agent.node.program import Program, of_this_process
from agent.node.substrate import Substrate
from agent.reconcile import check, impossible
from agent.resources import Resource
from agent.token import Token


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks of one `up`.

    `bundle` is the running file's or a folder's. `remake` are ids of things made once that are to be made anew;
    `prune`: what a newer bundle dropped goes.
    """

    state: Path
    bundle: Bundle
    running_file: Path | None
    name: str | None = None
    token: Token | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    remake: tuple[str, ...] = ()
    prune: bool = False


@dataclass(frozen=True, slots=True)
class Plans:
    """Who this node is, what it knew of that before, and what it carries: decided without touching anything.

    `program` is the file that is asked to run here with that bundle, `settled` the one that the agent's own copy is.
    """

    known: Self | None
    myself: Self
    substrate: Substrate
    program: Program
    settled: Program | None

    @property
    def is_settled(self) -> bool:
        """Whether the agent's own copy is this file already."""
        return self.settled == self.program

    @property
    def replaces(self) -> Program | None:
        """The other file whose place this one is to take here; None when there is none."""
        return None if self.is_settled else self.settled


def plans_for(asked: Asked) -> Plans:
    """Decide who this is, and load the whole list. Refused when either can't be."""
    known = Identity(asked.state).self()
    myself = decide(known, asked, bool(asked.bundle.document.get("mesh")))
    founder = myself.role is Role.FOUNDER
    loaded = substrate.load(asked.bundle, asked.state, myself.name, myself.settings, founder=founder)
    program = of_this_process(asked.bundle)
    is_copy = own_copy.is_it(asked.running_file, asked.state) and not asked.bundle.place.is_dir()
    return Plans(known, myself, loaded, program, program if is_copy else own_copy.settled(asked.state))


def decide(known: Self | None, asked: Asked, carries_mesh: bool) -> Self:
    """Who this machine is: by what was remembered, or, the first time, by token, bundle and options.

    Refused when what is asked contradicts what was remembered.
    """
    if known and known.role is Role.FOUNDER and asked.token:
        raise Refused(
            f"this machine founded its own mesh, as {known.name}, so it cannot join another with a token; "
            "`agent reset` would end that mesh"
        )
    if known:
        joining = asked.token.node if asked.token else None
        if asked.name not in (None, known.name, joining):
            raise Refused(f"this node is called {known.name} since its first up; `agent reset` first to rename it")
        role = Role.JOINER if asked.token else known.role
        if role is Role.ALONE and carries_mesh:
            role = Role.FOUNDER
        return Self(joining or known.name, role, {**_remembered(known, asked.bundle), **asked.settings})
    if asked.token:
        return Self(asked.token.node, Role.JOINER, asked.settings)
    role = Role.FOUNDER if carries_mesh else Role.ALONE
    return Self(substrate.node_name(asked.name), role, asked.settings)


def consider(asked: Asked, plans: Plans, tell: Callable[[str], None], *, newcomer: bool) -> None:
    """Say what is planned and, as far as it is new here, check it against the machine and what was declared for it.

    `newcomer`: another file ran here until now. Raises Refused or Unavailable, with nothing changed, when it can't be
    raised.
    """
    carried, raised = plans.substrate.resources, _was_raised(asked.state)
    _check_remade(asked.remake, carried)
    _announce(plans.known, plans.myself, asked, tell)
    machine = Machine(asked.state, b"", plans.substrate.read_blob)
    if not raised or newcomer:
        own_copy.verify_once(asked.bundle, asked.state)
    if not raised:
        substrate.check_room(plans.substrate, asked.state)
        check(carried, KINDS, machine)
        for warning in substrate.port_warnings(carried, sockets.given_out()):
            tell(f"warning: {warning}")
    elif newcomer or (plans.known and plans.known.settings != plans.myself.settings):
        _check_beside_declared(carried, asked.state)
        why = impossible(carried, KINDS, machine)
        if why:
            raise Refused(f"{why}; nothing was changed")


def _was_raised(state: Path) -> bool:
    """Whether all that is carried was once raised in this state folder."""
    try:
        ledger = open_ledger(state, time.time, write=False)
    except NotMade:
        return False
    with closing(ledger):
        return ledger.raised_once()


def _remembered(known: Self, bundle: Bundle) -> dict[str, str]:
    """The values set earlier that this bundle, which may be a newer one, still asks for."""
    params = bundle.document.get("params")
    return {name: value for name, value in known.settings.items() if isinstance(params, Mapping) and name in params}


def _announce(known: Self | None, myself: Self, asked: Asked, tell: Callable[[str], None]) -> None:
    if myself.role is Role.FOUNDER and (known is None or known.role is not Role.FOUNDER):
        tell(f"no token was given, so this machine founds a new mesh, as {myself.name}")
    elif myself.role is Role.ALONE:
        tell(f"no token was given and this bundle carries no mesh: {myself.name} raises it and keeps it so")
    elif asked.token:
        tell(f"joining the mesh at {asked.token.broker}, as {myself.name}")
    else:
        tell(f"{myself.name} is back ({myself.role.value})")
    if asked.name and asked.token and asked.name != asked.token.node:
        tell(f"the token is for {asked.token.node}, so that is this node's name, not {asked.name}")


def _check_remade(ids: Sequence[str], carried: Sequence[Resource]) -> None:
    """Refused when what is to be made anew isn't something that is otherwise made once."""
    once = {resource.id for resource in carried if resource.kind in ("secret", "certificate")}
    for id in ids:
        if id not in once:
            raise Refused(f"{id} is no secret or certificate that this node carries; there is nothing to make anew")


def _check_beside_declared(carried: Sequence[Resource], state: Path) -> None:
    """Refused when the mesh has declared for this node what the list would claim."""
    with closing(open_ledger(state, time.time, write=False)) as ledger:
        for why in taken(carried, ledger, last_declared(ledger, state)).values():
            raise Refused(
                f"this bundle claims what the mesh has declared for this node: {why}; nothing was changed. Have the "
                "mesh let go of it first, or choose another value with --set"
            )
