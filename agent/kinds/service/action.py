"""What there is to do with a service, whichever way it runs."""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """PLACE puts a unit's files in their places and has systemd read them; only a unit has any.

    START ends what is left first. AWAIT waits for what an earlier, interrupted run of the agent started, or the machine
    itself.
    """

    PLACE = "place"
    START = "start"
    AWAIT = "await"
