"""Taking everything away again: what the ledger holds, last first, then the agent's own folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.errors import Refused
from agent.host import directories
from agent.kinds import KINDS
from agent.kinds.kind import Machine
from agent.node import folder, installing
from agent.node.identity import Identity, Role
from agent.node.ledger import Ledger, open_ledger
from agent.reconcile import Entry, Reconciler, Step
from agent.resources import Origin


class Farewell:
    """A state folder that is about to end; made by `begin`."""

    def __init__(self, state: Path, ledger: Ledger, identity: Identity) -> None:
        self._state = state
        self._ledger = ledger
        self._identity = identity
        myself = identity.self()
        self.founder = myself is not None and myself.role is Role.FOUNDER

    def entries(self) -> list[Entry]:
        """All that is held, in the order of its removal."""
        assigned = self._ledger.entries(Origin.ASSIGNED)
        return [*reversed(assigned), *reversed(self._ledger.entries(Origin.CARRIED))]

    def installed(self) -> Sequence[Path]:
        """The agent's own unit and the link to it, as far as they are there."""
        return installing.installed(self._state)

    def remove(self, tell: Callable[[Step], None]) -> Mapping[str, str]:
        """Remove it all and, when nothing failed, the folder too; id → why for what could not be removed."""
        machine = Machine(self._state, self._identity.node_key(), lambda name: iter(()))
        failed = Reconciler(self._ledger, machine, KINDS, time.monotonic).remove_everything(tell)
        if not failed:
            installing.remove(self._state)
            self._ledger.close()
            directories.remove_tree(self._state, uid=os.geteuid())
        return failed


@contextmanager
def begin(state: Path) -> Iterator[Farewell]:
    """Take the folder for its end. Refused when there is none, Fatal while an agent runs on it."""
    if not (state / "ledger.db").exists():
        raise Refused(f"there is no agent's folder at {state}, so there is nothing to reset; see --state")
    installing.refuse_running(state)
    with folder.lock(state):
        ledger = open_ledger(state, time.time, write=True)
        try:
            yield Farewell(state, ledger, Identity(state))
        finally:
            ledger.close()
