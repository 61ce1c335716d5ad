"""A service: a long-running command; a unit where systemd runs the machine, a detached one elsewhere.

- The machine decides at each look; what is there of the other way is taken over or taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.host import systemd
from agent.kinds import readiness
from agent.kinds.kind import Held, Machine, Mark, Plan, Removal, Standing, Wanted
from agent.kinds.readiness import LogIn
from agent.kinds.service import detached, unit
from agent.kinds.service.action import Action
from agent.kinds.service.detached import Detached
from agent.kinds.service.unit import AsUnit
from agent.resources import Resource, specs

Observed = detached.Observed | unit.Observed


@dataclass(frozen=True, slots=True)
class Service:
    """The kind, how it logs in where that is what readiness means, and whether systemd is to be used.

    `settling`: one that doesn't say when it is ready must live so long (seconds); what can't work ends sooner.
    """

    log_in: LogIn = readiness.log_in
    settling: float = 1.0
    with_systemd: Callable[[], bool] = systemd.in_charge

    def check(self, spec: specs.Service, machine: Machine, earlier: Sequence[Resource]) -> None:
        """Whether its user and program are here, or may come with a package, and its ports and name are free."""
        self._way().check(spec, machine, earlier)

    def observe(self, wanted: Wanted, machine: Machine) -> Observed:
        """What runs of it, and what it was started with."""
        return self._way().observe(wanted, machine)

    def standing(self, observed: Observed) -> Standing:
        """What runs under our mark is ours."""
        if isinstance(observed, detached.Observed):
            return Standing.MADE if observed.members else Standing.ABSENT
        return Standing.MADE if observed.main or observed.leftover else Standing.ABSENT

    def plan(self, wanted: Wanted, observed: Observed, held: Held | None) -> Plan[Action]:
        """Keep what runs as wanted, start what doesn't run, replace the rest."""
        if isinstance(observed, detached.Observed):
            return detached.plan(wanted, observed, held)
        return unit.plan(wanted, observed, held)

    def preserve(self, wanted: Wanted, observed: Observed, machine: Machine) -> None:
        """A service is never found, only made."""

    def apply(self, wanted: Wanted, plan: Plan[Action], mark: Mark, machine: Machine) -> None:
        """Have it running and ready. Unavailable, with nothing of it left running, when that can't be."""
        self._way().apply(wanted, plan, machine)

    def remove(self, resource: Resource, held: Held, machine: Machine, *, data: bool) -> Removal:
        """End all of it, and take its unit, record and log away."""
        Detached(self.log_in, self.settling).remove(resource, machine)
        return Removal(unit.remove(resource, machine))

    def value(self, spec: specs.Service, machine: Machine) -> str | None:
        """Nothing refers to a service's value."""
        return None

    def _way(self) -> Detached | AsUnit:
        way = AsUnit if self.with_systemd() else Detached
        return way(self.log_in, self.settling)
