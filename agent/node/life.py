"""The life of a node whose plans are settled.

In this order: take what was decided as its own, raise what is carried, apply the last accepted declaration again, and
only then speak to a mesh. Losing the mesh changes nothing that runs here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.bundle import Bundle
from agent.kinds import KINDS
from agent.kinds.kind import Machine, Verb
from agent.node import folder, recovering
from agent.node.identity import Identity, Role, Self
from agent.node.ledger import Ledger, open_ledger
from agent.node.origins import accepted_job, taken
from agent.node.plans import Asked, Plans
from agent.node.substrate import Substrate
from agent.node.worker import Job
from agent.reconcile import Outcome, Phase, Reconciler, Step, Surveyor, impossible
from agent.resources import RUNNING_KINDS, Origin, Resource


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


def _remake(ids: Sequence[str], ledger: Ledger, machine: Machine) -> None:
    """Take away what is left of these and forget them, so that they are made anew."""
    for id in ids:
        entry = ledger.entry(Origin.CARRIED, id)
        if entry:
            KINDS[entry.resource.kind].remove(entry.resource, entry.held, machine, data=True)
            ledger.forget(Origin.CARRIED, id)
