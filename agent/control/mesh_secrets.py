"""The mesh's secrets as a person keeps them: given, made, listed, removed; what is in one is never given out again.

A new value and every declaration that follows from it are one transaction. Who uses one is known from what is arranged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.control import poke
from agent.control.changing import change_secret
from agent.control.declaring import Declared
from agent.control.signing import Keyring
from agent.control.store import MeshSecret, Store
from agent.errors import Refused
from agent.fields import dns_label, nearest, quoted
from agent.resources.grammar import secret_value


@dataclass(frozen=True, slots=True)
class SecretRow:
    """A secret's line in the list. `since` is when it got its value (seconds, epoch).

    `users` are the assignments of each node that use it; "" stands for the node's own list.
    """

    name: str
    version: int
    since: float
    users: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Kept:
    """A secret has this version of its value, which may be none that `is_new`; `declared` is what followed from it."""

    version: int
    is_new: bool
    declared: tuple[Declared, ...] = ()


class MeshSecrets:
    """The secrets in one control plane's store; `keys`, `clock` and `random` as everywhere."""

    def __init__(
        self,
        state: Path,
        store: Store,
        keys: Callable[[], Keyring],
        clock: Callable[[], float],
        random: Callable[[int], bytes],
    ) -> None:
        self._state = state
        self._store = store
        self._keys = keys
        self._clock = clock
        self._random = random

    def set(self, name: str, data: bytes) -> Kept:
        """Keep a value, in the place of the one that the secret has.

        Refused, with nothing changed, for a name that is no DNS label, for what no secret can be, and when a node that
        uses it can't be declared any more.
        """
        dns_label(name, "the secret's name")
        return self._keep(name, secret_value(data, "the value"))

    def make(self, name: str, size: int = 32, *, anew: bool = False) -> Kept:
        """Make a value of `size` random bytes, in lower-case hexadecimal. Refused as in `set`, and for a secret that is
        there already unless it is to be made `anew`.
        """
        dns_label(name, "the secret's name")
        if not anew and self._store.secrets.get(name):
            raise Refused(
                f"The mesh has a secret {name} already; say --anew to make another in its place, which reaches all who "
                "use it."
            )
        return self._keep(name, self._random(size).hex())

    def rows(self) -> tuple[SecretRow, ...]:
        """Every secret, by name."""
        return tuple(
            SecretRow(one.name, one.version, one.since, self._store.arrangements.users_of_secret(one.name))
            for one in self._store.secrets.all()
        )

    def remove(self, name: str) -> None:
        """Forget a secret. Refused, with the nearest name, when there is none, and while anything arranged uses it."""
        with self._store.transaction():
            if self._store.secrets.get(name) is None:
                hint = nearest(name, self._store.secrets.names()) or "."
                raise Refused(f"The mesh has no secret {quoted(name)}{hint} See `agent control secret list`.")
            users = self._store.arrangements.users_of_secret(name)
            if users:
                raise Refused(f"The secret {name} is used by {', '.join(places(users))}; change that first.")
            self._store.secrets.remove(name)

    def _keep(self, name: str, value: str) -> Kept:
        now = self._clock()
        with self._store.transaction():
            before = self._store.secrets.get(name)
            if before is not None and before.value == value:
                return Kept(before.version, is_new=False)
            version = before.version + 1 if before else 1
            self._store.secrets.put(MeshSecret(name, value, version, now))
            declared = change_secret(self._store, self._keys(), name, now)
        poke.poke(self._state)
        return Kept(version, is_new=True, declared=declared)


def places(users: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Who uses a secret, each in words."""
    return tuple(
        f"{user} on {node}" if user else f"the own list of {node}" for node, names in users.items() for user in names
    )
