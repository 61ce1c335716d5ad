"""How the resources of a list stand, told without touching anything or writing it down."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent.errors import AgentError
from agent.kinds.kind import Comparing, Machine, Verb
from agent.reconcile.record import Recorded
from agent.reconcile.wanted import REFERRED, Kinds, by_id, filled, kind_of
from agent.resources import Origin, Resource

_UNMADE = "made then"


@dataclass(frozen=True, slots=True)
class Finding:
    """How one resource stands. `difference` is a unified diff or empty, and shows no secret."""

    resource: Resource
    verb: Verb
    reason: str
    difference: str = ""


@dataclass(frozen=True, slots=True)
class Surveyor:
    """What it takes to look at lists on this machine."""

    record: Recorded
    machine: Machine
    kinds: Kinds

    def survey(
        self, wanted: Sequence[Resource], origin: Origin, *, only: Collection[str] | None = None
    ) -> list[Finding]:
        """How each resource of a list (of the kinds `only`) stands now; what isn't made yet reads `made then`."""
        own = by_id(wanted)
        return [self._look(one, origin, own) for one in wanted if only is None or one.kind in only]

    def _look(self, resource: Resource, origin: Origin, own: Mapping[str, Resource]) -> Finding:
        entry, kind = self.record.entry(origin, resource.id), kind_of(resource, self.kinds)
        try:
            asked = filled(resource, own, self.kinds, self.machine, unmade=_UNMADE)
            plan = kind.plan(asked, kind.observe(asked, self.machine), entry.held if entry else None)
            difference = ""
            if plan.verb is Verb.CHANGE and isinstance(kind, Comparing):
                difference = kind.difference(asked, self.machine, self._hidden(own))
        except AgentError as error:
            return Finding(resource, Verb.CHANGE if entry else Verb.CREATE, str(error))
        return Finding(resource, plan.verb, plan.reason, difference)

    def _hidden(self, own: Mapping[str, Resource]) -> dict[str, str]:
        """Every secret that is known here, by the reference that stands for it."""
        held = [entry.resource for origin in Origin for entry in self.record.entries(origin)]
        values = {
            f"secret.{one.name}": kind_of(one, self.kinds).value(one.spec, self.machine)
            for one in (*held, *own.values())
            if one.kind == REFERRED["secret"]
        }
        return {name: value for name, value in values.items() if value}
