"""What a person asks of the control plane: from any process on the founder, through the store.

None of it needs the service to run, and only `wait` waits for anything: what is declared is sent when it
runs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from agent.control import declaring, poke, views
from agent.control.config import Settings, advertised, read_settings
from agent.control.signing import current_key
from agent.control.store import Store, open_store
from agent.control.tokens import DEFAULT_LIFETIME, Site, create_token
from agent.errors import Refused
from agent.host import locks
from agent.resources import Document
from agent.token import Token

if TYPE_CHECKING:
    from agent.control.accounts import Accounts


class Control:
    """The control plane of one state folder; made by `open_control`, closed as a context manager."""

    def __init__(
        self,
        state: Path,
        settings: Settings,
        store: Store,
        accounts_for: Callable[[Settings], Accounts],
        clock: Callable[[], float],
        random: Callable[[int], bytes],
    ) -> None:
        self._state = state
        self._settings = settings
        self._store = store
        self._accounts_for = accounts_for
        self._clock = clock
        self._random = random

    def __enter__(self) -> Control:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()

    def mesh(self) -> views.Mesh:
        """Every node's line, how many messages were parked, and whether the service runs."""
        now, patience = self._clock(), self._store.settings.patience
        return views.Mesh(
            nodes=tuple(views.node_row(node, now, patience) for node in self._store.nodes.all()),
            parked=self._store.settings.parked,
            serving=is_serving(self._state),
        )

    def node(self, name: str) -> views.NodeDetail:
        """All about one node. Refused, with the nearest name, when there is none of this name."""
        node = declaring.find_node(self._store, name)
        return views.node_detail(node, self._clock(), self._store.settings.patience)

    def create_token(self, name: str, lifetime: float = DEFAULT_LIFETIME) -> Token:
        """A new token for a node, good for `lifetime` seconds; it ends every other one for that node.

        Refused for a bad name or lifetime; Unavailable when the broker's management doesn't answer.
        """
        # The founder's node is on the broker's own machine, and stays with it whatever address that has.
        own = name == self._settings.node
        broker = self._settings.broker if own else advertised(self._settings)
        site = Site(str(broker), self._settings.fingerprints, self._signer())
        return create_token(
            self._store,
            self._accounts_for(self._settings),
            site,
            name,
            lifetime=lifetime,
            now=self._clock(),
            random=self._random,
        )

    def declare(
        self, name: str, document: Document, settings: Mapping[str, str], *, retire: bool = False
    ) -> declaring.Declared:
        """Declare a list, its parameters filled from `settings`, to a node: validated, signed, stored, on its
        way.

        Refused, with nothing changed: an unknown node, a list that doesn't validate (with the path to the
        field), an empty list without `retire`, a lost signing key.
        """
        declaring.find_node(self._store, name)
        checked = declaring.check_document(document, settings, name)
        key = current_key(self._state, self._store)
        declared = declaring.declare(self._store, key, name, checked, retire=retire, now=self._clock())
        poke.poke(self._state)
        return declared

    def wait(self, declared: declaring.Declared, timeout: float | None = None) -> declaring.Outcome:
        """Wait up to `timeout` seconds, or without end, for what the node says of a declaration."""
        return declaring.wait_for_report(self._store, declared.node, declared.serial, timeout)

    def _signer(self) -> bytes:
        return current_key(self._state, self._store).public


def open_control(
    state: Path,
    *,
    accounts_for: Callable[[Settings], Accounts] | None = None,
    clock: Callable[[], float] = time.time,
    random: Callable[[int], bytes] = secrets.token_bytes,
) -> Control:
    """The control plane whose state folder this is.

    Refused on a machine that isn't the founder, while the control plane has never run, and when its store is
    of another version.
    """
    settings = read_settings(state)
    if not (state / "control" / "store.db").exists():
        raise Refused(
            "The control plane of this mesh has not started yet: see `agent status` and "
            f"{state / 'log' / 'control.log'}, and try again."
        )
    return Control(state, settings, open_store(state), accounts_for or _connect_accounts, clock, random)


def is_serving(state: Path) -> bool:
    """Whether the service runs."""
    return locks.holder(state / "control" / "serve.lock") is not None


def _connect_accounts(settings: Settings) -> Accounts:
    # HTTP costs a moment, which only those pay who need it.
    from agent.control.management import connect_accounts

    return connect_accounts(settings)
