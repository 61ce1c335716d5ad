"""What a person asks of the control plane: from any process on the founder, through the store.

None of it needs the service to run, and only `wait` waits for anything: what is declared is sent when it
runs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from agent.broker import Session, connect
from agent.control import declaring, parking, poke, removal, rotation, views
from agent.control.arranging import Arranging
from agent.control.config import Settings, advertised, read_settings
from agent.control.founding import known_by, pins
from agent.control.mesh_secrets import MeshSecrets
from agent.control.signing import read_keyring
from agent.control.store import Store, open_store
from agent.control.tokens import DEFAULT_LIFETIME, Site, create_token, revoke_tokens
from agent.control.turn import lock_path
from agent.errors import Refused
from agent.fields import quoted
from agent.host import locks
from agent.resources import Document
from agent.token import Token
from agent.wire import PARKED_QUEUE

if TYPE_CHECKING:
    from agent.control.accounts import Accounts
    from agent.control.renewal import Unaware


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
        keys = partial(read_keyring, state, store)
        self.arranging = Arranging(state, store, keys, clock)
        self.secrets = MeshSecrets(state, store, keys, clock, random)

    def __enter__(self) -> Control:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()

    def mesh(self) -> views.Mesh:
        """Every node's line, how many messages were parked, and whether the service runs."""
        now, patience, assigned = self._clock(), self._store.settings.patience, self._assigned()
        return views.Mesh(
            nodes=tuple(
                views.node_row(node, now, patience, assigned.get(node.name, ())) for node in self._store.nodes.all()
            ),
            parked=self._store.settings.parked,
            serving=is_serving(self._state),
        )

    def node(self, name: str) -> views.NodeDetail:
        """All about one node. Refused, with the nearest name, when there is none of this name."""
        node = declaring.find_node(self._store, name)
        patience, assigned = self._store.settings.patience, self._assigned()
        return views.node_detail(node, self._clock(), patience, assigned.get(name, ()))

    def create_token(
        self, name: str, lifetime: float = DEFAULT_LIFETIME, *, replace: bool = False, at_once: bool = False
    ) -> Token:
        """A new token for a node, good for `lifetime` seconds; it ends every other one for that node.

        With `replace` the node may have joined before; `at_once` shuts out the machine that did, instead of when
        another joins. Refused for a bad name or lifetime, and for a node that has joined without `replace`; Unavailable
        when the broker's management doesn't answer.
        """
        if at_once and not replace:
            raise Refused("--now says when the other machine is shut out, so it goes with --replace only.")
        # The founder's node is on the broker's own machine, and stays with it whatever address that has.
        own = name == self._settings.node
        broker = self._settings.broker if own else advertised(self._settings)
        site = Site(str(broker), pins(self._settings, self._store), self._signer())
        accounts = self._accounts_for(self._settings)
        token = create_token(
            self._store,
            accounts,
            site,
            name,
            lifetime=lifetime,
            replace=replace,
            now=self._clock(),
            random=self._random,
        )
        if at_once:
            removal.shut_out(accounts, name)
        return token

    def tokens(self) -> tuple[views.TokenRow, ...]:
        """Every token that isn't done with, by node."""
        now = self._clock()
        rows = [views.token_row(token, now) for token in self._store.tokens.live()]
        return tuple(sorted(rows, key=lambda row: row.node))

    def revoke_token(self, name: str) -> None:
        """End every token for a node: see `revoke_tokens`."""
        revoke_tokens(self._store, self._accounts_for(self._settings), name)

    def remove_node(self, name: str) -> None:
        """Forget a node: see `removal.remove_node`."""
        removal.remove_node(self._store, self._accounts_for(self._settings), name, founder=self._settings.node)

    def keys(self) -> tuple[rotation.KeyRow, ...]:
        """The signing keys, and who is signed for with which."""
        return rotation.list_keys(self._store)

    def rotate_key(self) -> int:
        """Make the next signing key: see `rotation.rotate`."""
        number = rotation.rotate(self._state, self._store, self._random, self._clock())
        poke.poke(self._state)
        return number

    def retire_key(self, number: int, *, force: bool = False) -> None:
        """Have a signing key count no more: see `rotation.retire`. With `force`, tokens that name it end as well."""
        # The tokens first: who came in with one of them would trust a key that counts no more, and nobody else.
        for row in self.keys():
            if force and row.number == number and not (row.retired or row.is_newest):
                for node in row.tokens:
                    revoke_tokens(self._store, self._accounts_for(self._settings), node)
        rotation.retire(self._state, self._store, number, self._clock(), force=force)
        poke.poke(self._state)

    def begin_renewal(self) -> str:
        """Make the broker's next certificate and tell every node of it: see `renewal.begin`. The next pin."""
        from agent.control import renewal

        pin = renewal.begin(self._state, self._store, self._settings, self._clock())
        poke.poke(self._state)
        return pin

    def unaware_of(self, pin: str) -> Unaware:
        """Who doesn't know the next pin yet: see `renewal.unaware`."""
        from agent.control import renewal

        unaware = renewal.unaware(self._state, self._store, pin, self._clock(), founder=self._settings.node)
        poke.poke(self._state)
        return unaware

    def swap_certificates(self) -> None:
        """Put the next certificate in the current one's place: see `renewal.swap`."""
        from agent.control import renewal

        renewal.swap(self._state, self._store, self._settings)

    def backup(self, path: Path) -> None:
        """Write the control plane to a file: see `write_backup`."""
        from agent.control.backup import write_backup  # ssl and tarfile cost a moment, which only this one pays

        settings = self._settings
        write_backup(
            self._state,
            self._store,
            path,
            node=settings.node,
            fingerprints=settings.fingerprints,
            now=self._clock(),
        )

    def parked(self) -> tuple[parking.Parked, ...]:
        """What could not be understood, the oldest first. Unavailable when the broker doesn't answer."""
        with self._session() as session:
            return parking.read_all(session)

    def parked_message(self, id: str) -> parking.Parked:
        """One parked message. Refused when there is none that is called so."""
        found = next((one for one in self.parked() if one.id == id), None)
        if found is None:
            raise Refused(f"No parked message is called {quoted(id)}; see `agent control parked list`.")
        return found

    def drop_parked(self, ids: Collection[str] | None) -> int:
        """Drop parked messages: see `parking.drop`. All (None), about as many as it says, without reading any."""
        with self._session() as session:
            if ids is not None:
                return parking.drop(session, ids)
            count = session.count(PARKED_QUEUE)
        self._accounts_for(self._settings).purge_queue(PARKED_QUEUE)
        return count

    def retry_parked(self, ids: Collection[str] | None) -> int:
        """Have the service look at parked messages again: see `parking.retry`."""
        with self._session() as session:
            return parking.retry(session, ids, account=self._settings.account)

    def declare(
        self, name: str, document: Document, settings: Mapping[str, str], *, retire: bool = False
    ) -> declaring.Declared | declaring.Waits:
        """Declare a list to a node, in place of its own: see `Arranging.declare`."""
        return self.arranging.declare(name, document, settings, retire=retire)

    def wait(self, declared: declaring.Declared, timeout: float | None = None) -> declaring.Outcome:
        """Wait up to `timeout` seconds, or without end, for what the node says of a declaration."""
        return declaring.wait_for_report(self._store, declared.node, declared.serial, timeout)

    def _assigned(self) -> dict[str, list[int]]:
        """The host ports that are assigned on each node."""
        found: dict[str, list[int]] = {}
        for row in self.arranging.ports():
            if row.freed is None:
                found.setdefault(row.node, []).append(row.port.number)
        return found

    def _session(self) -> closing[Session]:
        return closing(connect(self._settings.login))

    def _signer(self) -> bytes:
        return read_keyring(self._state, self._store).newest.public


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
    store = open_store(state)
    return Control(state, known_by(settings, store), store, accounts_for or _connect_accounts, clock, random)


def is_serving(state: Path) -> bool:
    """Whether the service runs, be it in a container."""
    return locks.is_held(lock_path(state))


def _connect_accounts(settings: Settings) -> Accounts:
    # HTTP costs a moment, which only those pay who need it.
    from agent.control.management import connect_accounts

    return connect_accounts(settings)
