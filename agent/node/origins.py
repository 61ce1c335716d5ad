"""What either origin has here: all that is carried, and what the mesh declared last. Neither takes from the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.errors import Refused
from agent.node.ledger import Ledger
from agent.node.substrate import Substrate
from agent.node.trust import reread
from agent.node.worker import NOTHING_ACCEPTED, Job
from agent.resources import Origin, Resource, claims, collisions


def carried_resources(substrate: Substrate, ledger: Ledger) -> tuple[Resource, ...]:
    """Every carried resource that claims something here: the list's, and those dropped by it but still here."""
    listed = {resource.id: resource for resource in substrate.resources}
    kept = {entry.resource.id: entry.resource for entry in ledger.entries(Origin.CARRIED)}
    return tuple({**kept, **listed}.values())


def carried_ports(substrate: Substrate, ledger: Ledger) -> Sequence[int]:
    """The host ports that the carried resources declare, as a report states them: sorted distinct numbers."""
    carried = carried_resources(substrate, ledger)
    return sorted({port.number for resource in carried for port in claims(resource).ports})


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
