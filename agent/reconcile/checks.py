"""Whether a list can be made here at all, asked before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence

from agent.errors import Refused, Unavailable
from agent.kinds.kind import Machine
from agent.reconcile.wanted import Kinds, kind_of
from agent.resources import Resource


def check(wanted: Sequence[Resource], kinds: Kinds, machine: Machine) -> None:
    """Ask of a whole list whether it can be done here, touching nothing.

    Raises Refused (never) or Unavailable (not now) for the first that can't.
    """
    for at, resource in enumerate(wanted):
        kind_of(resource, kinds).check(resource.spec, machine, wanted[:at])


def impossible(wanted: Sequence[Resource], kinds: Kinds, machine: Machine) -> str | None:
    """Why a list can never be made here, in a sentence; None when it can, be it not now."""
    for at, resource in enumerate(wanted):
        try:
            kind_of(resource, kinds).check(resource.spec, machine, wanted[:at])
        except Refused as error:
            return f"{resource.id} can never be made on this machine: {error}"
        except Unavailable:
            continue
    return None
