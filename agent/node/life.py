"""The life of a node, from a bare machine to waiting for declarations.

In this order: take the folder, load the bundle and check the whole of it before anything is touched, raise what is
carried, apply the last accepted declaration again, and only then speak to a mesh. Losing the mesh changes nothing that
runs here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from agent.bundle import Bundle, verify
from agent.database import NotMade
from agent.errors import Refused
from agent.host import sockets
from agent.kinds import KINDS
from agent.kinds.kind import Machine, Verb
from agent.node import folder, recovering, substrate
from agent.node.identity import Identity, Role, Self
from agent.node.ledger import Ledger, open_ledger
from agent.node.substrate import Substrate
from agent.node.trust import reread
from agent.node.worker import NOTHING_ACCEPTED, Job
from agent.reconcile import Outcome, Reconciler, Step, Surveyor, check, impossible
from agent.resources import RUNNING_KINDS, Origin, Resource, claims
from agent.token import Token

log = logging.getLogger(__name__)


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
class Node:
    """A node whose folder is taken and whose list is checked: all that the rest of its life needs."""

    state: Path
    myself: Self
    identity: Identity
    ledger: Ledger
    reconciler: Reconciler
    substrate: Substrate

    @property
    def has_mesh(self) -> bool:
        """Whether there is a mesh to hold a link to: its own, or one it joined."""
        return self.myself.role is not Role.ALONE

    def raise_substrate(
        self, tell: Callable[[Step], None], stop: Callable[[], bool], *, prune: bool = False
    ) -> Outcome:
        """Make the carried list true. What a newer bundle dropped is kept, unless it is told to go (`prune`)."""
        resources = self.substrate.resources
        self.ledger.forget_failures_beside(Origin.CARRIED, {resource.id for resource in resources})
        outcome = self.reconciler.apply(resources, Origin.CARRIED, prune=prune, tell=tell, stop=stop)
        if not outcome.failed and not outcome.interrupted:
            self.ledger.note_raised()
        return outcome

    def apply(self, job: Job, tell: Callable[[Step], None], stop: Callable[[], bool]) -> Outcome:
        """Make an accepted list true; before it the carried one, when it failed the last time or it is time to look."""
        before = Outcome()
        if job.again or self.ledger.failures(Origin.CARRIED):
            before = self.raise_substrate(tell, stop)
        declared = {resource.id for resource in job.resources}
        if job.accepted:
            recovering.take_back(self.ledger, declared, self.reconciler.kinds, self.reconciler.machine)
        self.ledger.forget_failures_beside(Origin.ASSIGNED, declared)
        outcome = self.reconciler.apply(job.resources, Origin.ASSIGNED, prune=job.accepted, tell=tell, stop=stop)
        return Outcome(
            before.changes + outcome.changes,
            {**before.failed, **outcome.failed},
            interrupted=before.interrupted or outcome.interrupted,
        )

    def has_ended(self) -> bool:
        """Whether something that should run does not; a quick look that touches nothing."""
        surveyor = Surveyor(self.ledger, self.reconciler.machine, self.reconciler.kinds)
        return any(
            finding.verb is not Verb.KEEP
            for origin in Origin
            for finding in surveyor.survey(
                [entry.resource for entry in self.ledger.entries(origin)], origin, only=RUNNING_KINDS
            )
        )

    def impossible(self, wanted: Sequence[Resource]) -> str | None:
        """Why a list can never be made here; None when it can."""
        return impossible(wanted, self.reconciler.kinds, self.reconciler.machine)

    def accepted_job(self) -> Job:
        """The last accepted list, its signature verified again. Refused when it no longer verifies or reads."""
        accepted = self.ledger.accepted()
        if accepted is None:
            return NOTHING_ACCEPTED
        return Job(accepted.serial, reread(accepted.data, accepted.signature, accepted.signer, self.state))


def carried_resources(substrate: Substrate, ledger: Ledger) -> tuple[Resource, ...]:
    """Every carried resource that claims something here: the list's, and those dropped by it but still here."""
    listed = {resource.id: resource for resource in substrate.resources}
    kept = {entry.resource.id: entry.resource for entry in ledger.entries(Origin.CARRIED)}
    return tuple({**kept, **listed}.values())


def carried_ports(substrate: Substrate, ledger: Ledger) -> Sequence[int]:
    """The host ports that the carried resources declare, as a report states them: sorted distinct numbers."""
    carried = carried_resources(substrate, ledger)
    return sorted({port.number for resource in carried for port in claims(resource).ports})


@dataclass(frozen=True, slots=True)
class Plans:
    """Who this node is, what it knew of that before, and what it carries: decided without touching anything."""

    known: Self | None
    myself: Self
    substrate: Substrate


def plans_for(asked: Asked) -> Plans:
    """Decide who this is, and load the whole list. Refused when either can't be."""
    known = Identity(asked.state).self()
    myself = decide(known, asked, bool(asked.bundle.document.get("mesh")))
    founder = myself.role is Role.FOUNDER
    loaded = substrate.load(asked.bundle, asked.state, myself.name, myself.settings, founder=founder)
    return Plans(known, myself, loaded)


def consider(asked: Asked, tell: Callable[[str], None]) -> Plans:
    """What is planned, said and, as long as it was never raised here, checked against the machine.

    Raises Refused or Unavailable, with nothing changed, when it can't be raised.
    """
    plans = plans_for(asked)
    _announce(plans.known, plans.myself, asked, tell)
    if not was_raised(asked.state):
        verify(asked.bundle)
        substrate.check_room(plans.substrate, asked.state)
        check(plans.substrate.resources, KINDS, Machine(asked.state, b"", plans.substrate.read_blob))
        for warning in substrate.port_warnings(plans.substrate.resources, sockets.given_out()):
            tell(f"warning: {warning}")
    return plans


def begin(asked: Asked, plans: Plans) -> Node:
    """Make what was decided durable, in a folder that is this process's own."""
    identity, loaded, myself = Identity(asked.state), plans.substrate, plans.myself
    ledger = open_ledger(asked.state, time.time, write=True)
    machine = Machine(asked.state, identity.node_key(), loaded.read_blob)
    reconciler = Reconciler(ledger, machine, KINDS, time.monotonic)
    if myself != plans.known:
        identity.decide(myself)
    if asked.token:
        identity.keep_token(asked.token)
    if myself.role is Role.FOUNDER:
        folder.prepare_control(asked.state)
    place = asked.bundle.place
    folder.settle(asked.running_file, asked.state, carrying=place if place.is_dir() else None)
    _remake(asked.remake, ledger, machine, loaded.resources)
    return Node(asked.state, myself, identity, ledger, reconciler, loaded)


def was_raised(state: Path) -> bool:
    """Whether all that is carried was once raised in this state folder."""
    try:
        ledger = open_ledger(state, time.time, write=False)
    except NotMade:
        return False
    with closing(ledger):
        return ledger.raised_once()


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


def _remake(ids: Sequence[str], ledger: Ledger, machine: Machine, resources: Sequence[Resource]) -> None:
    """Take away what is left of these and forget them, so that they are made anew. Only what is made once can be."""
    once = {resource.id for resource in resources if resource.kind in ("secret", "certificate")}
    for id in ids:
        if id not in once:
            raise Refused(f"{id} is no secret or certificate that this node carries; there is nothing to make anew")
    for id in ids:
        entry = ledger.entry(Origin.CARRIED, id)
        if entry:
            KINDS[entry.resource.kind].remove(entry.resource, entry.held, machine, data=True)
            ledger.forget(Origin.CARRIED, id)
