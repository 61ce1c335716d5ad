"""A node that lost its ledger and not its machine: what it held for the mesh is found again, and taken back.

- The accepted declaration brings the ids that the mesh knows this node to hold. Of those that the ledger doesn't know
  and the list doesn't declare, what bears this state folder's mark becomes the ledger's again, as if it were half made;
  so applying lets go of it as of anything that is declared no more. What bears no mark isn't ours, and isn't touched.
- Secrets that were made here and certificates are never let go of by themselves, packages neither, and reserved ports
  are nothing. A secret that the mesh sent is let go of.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Collection, Mapping

from agent.errors import Refused, Unavailable
from agent.fields import JsonValue
from agent.kinds.kind import Machine, Standing, Wanted
from agent.node.ledger import Ledger
from agent.reconcile import Kinds
from agent.resources import SEAL_BYTES, Context, Origin, Resource, parse_resource, split_id

log = logging.getLogger(__name__)

# The least that makes a resource of an id: how it is to be is no matter when it goes. In the order of applying, of
# which removal is the reverse.
_LEAST: Mapping[str, Mapping[str, JsonValue]] = {
    "secret": {"sealed": base64.b64encode(bytes(SEAL_BYTES + 1)).decode("ascii")},
    "directory": {},
    "file": {"content": ""},
    "image": {},
    "container": {"image": "scratch"},
    "service": {"command": ["/bin/true"]},
}


def take_back(ledger: Ledger, declared: Collection[str], kinds: Kinds, machine: Machine) -> None:
    """Record what is ours by its mark among what the mesh says was held here. What can't be seen now waits."""
    resources = [_least(id, machine) for id in ledger.unsought()]
    for position, resource in enumerate(sorted(filter(None, resources), key=_order), 1):
        if resource.id in declared or ledger.entry(Origin.ASSIGNED, resource.id):
            ledger.note_sought(resource.id)
            continue
        kind = kinds[resource.kind]
        try:
            standing = kind.standing(kind.observe(Wanted(resource, ""), machine))
        except (Refused, Unavailable) as error:
            log.warning(
                "%s may be left from before the ledger was lost, and can't be looked at: %s", resource.id, error
            )
            continue
        if standing in (Standing.MADE, Standing.FOUND):
            ledger.intend(Origin.ASSIGNED, resource, position, found=standing is Standing.FOUND)
        ledger.note_sought(resource.id)


def _least(id: str, machine: Machine) -> Resource | None:
    kind, name = split_id(id)
    if kind not in _LEAST:
        return None
    try:
        return parse_resource({"kind": kind, "name": name, **_LEAST[kind]}, "recovery", Context(machine.state))
    except Refused:  # no name that anything of ours could have
        return None


def _order(resource: Resource) -> tuple[int, str]:
    return list(_LEAST).index(resource.kind), resource.name
