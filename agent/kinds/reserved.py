"""A reservation: these ports are held by the machine's own programs. Nothing is looked at and nothing is done."""

from __future__ import annotations

from collections.abc import Sequence

from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Verb, Wanted
from agent.resources import Resource, specs


class Reserved:
    """The kind `reserved`."""

    def check(self, spec: specs.Reserved, machine: Machine, earlier: Sequence[Resource]) -> None:
        pass

    def observe(self, wanted: Wanted, machine: Machine) -> None:
        pass

    def standing(self, observed: None) -> Standing:
        return Standing.ABSENT

    def plan(self, wanted: Wanted, observed: None, held: Held | None) -> Plan[None]:
        if held is None or not held.stamp:
            return Plan(Verb.ADOPT, "its ports are held by others")
        return Plan(Verb.KEEP)

    def preserve(self, wanted: Wanted, observed: None, machine: Machine) -> None:
        pass

    def apply(self, wanted: Wanted, plan: Plan[None], mark: Mark, machine: Machine) -> None:
        pass

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        return Removal()

    def value(self, spec: specs.Reserved, machine: Machine) -> str | None:
        return None
