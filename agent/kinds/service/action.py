"""What there is to do with a service, whichever way it runs."""

from __future__ import annotations

from enum import Enum

from agent.kinds.kind import Held, Plan, Verb


class Action(Enum):
    """PLACE puts a unit's files in their places and has systemd read them; only a unit has any.

    START ends what is left first. AWAIT waits for what an earlier, interrupted run of the agent started, or the machine
    itself.
    """

    PLACE = "place"
    START = "start"
    AWAIT = "await"


def plan_for_running(ready: bool, held: Held | None) -> Plan[Action]:
    """What to do with one that runs as declared: wait until it is ready, take it over, or nothing."""
    if not ready:
        return Plan(Verb.ADOPT, "it runs already, but was not seen ready", (Action.AWAIT,))
    if held is None:
        return Plan(Verb.ADOPT, "it runs already")
    return Plan(Verb.KEEP)
