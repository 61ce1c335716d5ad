"""The life of a node, from a bare machine to waiting for declarations.

In this order: load the bundle and check the whole of it before anything is touched, take the folder, raise what is
carried, apply the last accepted declaration again, and only then speak to a mesh. Losing the mesh changes nothing that
runs here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.bundle import Bundle
from agent.database import NotMade
from agent.errors import Refused
from agent.host import sockets
from agent.kinds import KINDS
from agent.kinds.kind import Machine, Verb
from agent.node import folder, own_copy, recovering, substrate
from agent.node.identity import Identity, Role, Self
from agent.node.ledger import Ledger, open_ledger
from agent.node.program import Program, of_this_process
from agent.node.substrate import Substrate
from agent.node.trust import reread
from agent.node.worker import NOTHING_ACCEPTED, Job
from agent.reconcile import Outcome, Phase, Reconciler, Step, Surveyor, check, impossible
from agent.resources import RUNNING_KINDS, Origin, Resource, claims, collisions
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
        self,
        declared: Sequence[Resource],
        tell: Callable[[Step], None],
        stop: Callable[[], bool],
        *,
        prune: bool = False,
    ) -> Outcome:
        """Make the carried list true, as far as it claims nothing that is `declared`.

        What a newer bundle dropped is kept, unless it is told to go (`prune`).
        """
        resources = self.substrate.resources
        self.ledger.forget_failures_beside(Origin.CARRIED, {resource.id for resource in resources})
        # What was made as it is listed holds its claims, and no declaration is accepted that wants them.
        made = {
            one.resource.id: one.resource for one in self.ledger.entries(Origin.CARRIED) if one.phase is Phase.APPLIED
        }
        unmade = [one for one in resources if one.id not in made or made[one.id].source != one.source]
        barred = taken(unmade, self.ledger, declared) if unmade else {}
        outcome = self.reconciler.apply(resources, Origin.CARRIED, prune=prune, tell=tell, stop=stop, barred=barred)
        if not outcome.failed and not outcome.interrupted:
            self.ledger.note_raised()
        return outcome

    def apply(self, job: Job, tell: Callable[[Step], None], stop: Callable[[], bool]) -> Outcome:
        """Make an accepted list true; before it the carried one, when it failed the last time or it is time to look."""
        before = Outcome()
        if job.again or self.ledger.failures(Origin.CARRIED):
            before = self.raise_substrate(job.resources, tell, stop)
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
        return accepted_job(self.ledger, self.state)


def accepted_job(ledger: Ledger, state: Path) -> Job:
    """The last accepted list, its signature verified again. Refused when it no longer verifies or reads."""
    accepted = ledger.accepted()
    if accepted is None:
        return NOTHING_ACCEPTED
    return Job(accepted.serial, reread(accepted.data, accepted.signature, accepted.signer, state))


def last_declared(ledger: Ledger, state: Path) -> tuple[Resource, ...]:
    """What the last accepted list declares; nothing when it no longer verifies or reads, as it isn't applied then."""
    try:
        return accepted_job(ledger, state).resources
    except Refused:
        return ()


def taken(carried: Sequence[Resource], ledger: Ledger, declared: Sequence[Resource]) -> Mapping[str, str]:
    """Which carried resources claim what the mesh has `declared` or made here, and why, by id.

    Neither origin takes anything from the other, so these can't be made.
    """
    assigned = {entry.resource.id: entry.resource for entry in ledger.entries(Origin.ASSIGNED)}
    assigned.update((resource.id, resource) for resource in declared)
    return collisions(carried, tuple(assigned.values())) if assigned else {}


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


def consider(asked: Asked, plans: Plans, tell: Callable[[str], None], *, newcomer: bool) -> None:
    """Say what is planned and, as far as it is new here, check it against the machine and what was declared for it.

    `newcomer`: another file ran here until now. Raises Refused or Unavailable, with nothing changed, when it can't be
    raised.
    """
    carried, raised = plans.substrate.resources, was_raised(asked.state)
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


def begin(asked: Asked, plans: Plans, bundle: Bundle) -> Node:
    """Make what was decided durable, in a folder that is this process's own. From now on `bundle` is read for blobs."""
    identity, loaded, myself = Identity(asked.state), replace(plans.substrate, bundle=bundle), plans.myself
    ledger = open_ledger(asked.state, time.time, write=True)
    machine = Machine(asked.state, identity.node_key(), loaded.read_blob, plans.program.stamp)
    reconciler = Reconciler(ledger, machine, KINDS, time.monotonic)
    if myself != plans.known:
        identity.decide(myself)
    if asked.token:
        identity.keep_token(asked.token)
    if myself.role is Role.FOUNDER:
        folder.prepare_control(asked.state)
    _remake(asked.remake, ledger, machine)
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


def _remake(ids: Sequence[str], ledger: Ledger, machine: Machine) -> None:
    """Take away what is left of these and forget them, so that they are made anew."""
    for id in ids:
        entry = ledger.entry(Origin.CARRIED, id)
        if entry:
            KINDS[entry.resource.kind].remove(entry.resource, entry.held, machine, data=True)
            ledger.forget(Origin.CARRIED, id)
