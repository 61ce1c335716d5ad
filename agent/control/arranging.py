"""What a person arranges for nodes (own lists, modules, assignments), each with the declarations that carry it.

- A change and every declaration that follows from it (`agent.control.changing`) are one transaction: a crash between
  loses nothing.
- A module's new version moves nobody. Rolling it out moves one node after the other, and stops at the first that fails.
- Going back is going on: earlier content under a new serial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent.control import assigning, poke
from agent.control.assigning import Arrangement, Assignment, OwnList
from agent.control.changing import change, compose_for, declared_ids
from agent.control.comparing import Comparison, compare
from agent.control.composing import check_module
from agent.control.declaring import (
    Applied,
    Declared,
    Outcome,
    Waits,
    find_node,
    items_of,
    outcome,
    wait_for_report,
)
from agent.control.modules import Module
from agent.control.ports import HostPort, PortRange
from agent.control.sealing import unsealed
from agent.control.signing import Keyring
from agent.control.store import Store, Version
from agent.errors import Refused
from agent.fields import nearest, quoted
from agent.resources import Document


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module's line in the list: its newest version, and which version each assignment of it is at.

    `assigned` has (node, assignment, version).
    """

    name: str
    version: int
    added: float
    assigned: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class PortRow:
    """A host port that is assigned: to which assignment, as its module's port `name`; `freed` with which serial.

    A port that was given back has no name, and stays until its node has reported that serial.
    """

    node: str
    port: HostPort
    assignment: str
    name: str
    freed: int | None


@dataclass(frozen=True, slots=True)
class Moved:
    """A step of a roll-out: what was declared to a node, and what it says; None when nobody waited for that."""

    declared: Declared | Waits
    outcome: Outcome | None

    @property
    def is_fine(self) -> bool:
        return self.outcome is None or self.outcome == Applied({})


class Arranging:
    """What can be arranged, in one control plane's store.

    `keys` gives the keys to sign with, `clock` the time. `wait` waits for what a node says of a serial, for so many
    seconds or without end.
    """

    def __init__(
        self,
        state: Path,
        store: Store,
        keys: Callable[[], Keyring],
        clock: Callable[[], float],
        wait: Callable[[Store, str, int, float | None], Outcome] = wait_for_report,
    ) -> None:
        self._state = state
        self._store = store
        self._keys = keys
        self._clock = clock
        self._wait = wait

    def declare(
        self, name: str, document: Document, settings: Mapping[str, str], *, retire: bool = False
    ) -> Declared | Waits:
        """Put a list in place of a node's own; `settings` are values of its parameters.

        Refused, with nothing changed: an unknown node, a list that doesn't validate (with the path to the
        field), an empty list without `retire`, a lost signing key.
        """
        if not document.items and not retire:
            find_node(self._store, name)
            raise Refused(
                f"This list is empty, which would remove everything that is declared to {name}; say --retire if that "
                "is meant."
            )
        return self._change(name, lambda before: replace(before, own=_own_list(document, settings)), anyway=True)

    def assign(
        self, module: str, name: str, called: str = "", settings: Mapping[str, str] | None = None
    ) -> Declared | Waits:
        """Assign a module's newest version to a node, `called` by its own name if by no other.

        Refused, with nothing changed: an unknown module, node or parameter, a name that is taken, no port left, and
        what makes a list refused.
        """
        newest = self._newest(module)
        assignment = Assignment(called or module, module, newest.number, dict(settings or {}))
        return self._change(name, lambda before: assigning.assign(before, assignment))

    def unassign(self, called: str, name: str) -> Declared | Waits:
        """Take an assignment from a node. Refused when there is none, or something elsewhere refers to it."""
        return self._change(name, lambda before: assigning.unassign(before, name, called))

    def rollback(self, name: str, to: int | None = None) -> Declared | Waits:
        """Declare to a node what it was declared before: by the serial `to`, else the last that was something else.

        The mesh's secrets keep the values that they have. Refused when nothing such is kept, or it can't be any more (a
        module or a secret was removed).
        """
        find_node(self._store, name)
        earlier = self._earlier(name, to)
        return self._change(name, lambda before: replace(earlier, released=before.released), anyway=True)

    def plan(self, name: str, document: Document | None, settings: Mapping[str, str]) -> Comparison:
        """What a declaration of this list (None: of what is arranged) would change, against the last one."""
        node = find_node(self._store, name)
        before = self._store.arrangements.get(name)
        after = before if document is None else replace(before, own=_own_list(document, settings))
        composed = compose_for(self._store, node, before, after, {}, keep=False)
        wanted = self._store.declarations.wanted(name)
        return compare(items_of(wanted) if wanted else (), composed.checked.items, waits=composed.waits)

    def add_module(self, module: Module) -> Version:
        """Store a version of a module; the same content as the newest is that version. It moves nobody.

        Refused when the module, with its defaults, doesn't validate.
        """
        check_module(module)
        with self._store.transaction():
            newest = self._store.modules.newest(module.name)
            if newest and newest.module == module:
                return newest
            version = Version(newest.number + 1 if newest else 1, module, self._clock())
            self._store.modules.add(version)
        return version

    def missing_secrets(self, module: Module) -> tuple[str, ...]:
        """The secrets that a module uses and neither it nor the mesh has, each with the nearest name: a node's own list
        may have it, or the mesh by the time it is assigned.
        """
        known = self._store.secrets.names()
        return tuple(f"{quoted(name)}{nearest(name, known)}" for name in sorted(check_module(module) - {*known}))

    def modules(self) -> tuple[ModuleRow, ...]:
        """Every module, by name."""
        return tuple(self._module_row(self._newest(name)) for name in self._store.modules.names())

    def module(self, name: str) -> tuple[ModuleRow, Module]:
        """One module, and what its newest version says. Refused, with the nearest name, when there is none."""
        newest = self._newest(name)
        return self._module_row(newest), newest.module

    def remove_module(self, name: str) -> None:
        """Forget every version of a module. Refused while it is assigned."""
        with self._store.transaction():
            row = self._module_row(self._newest(name))
            if row.assigned:
                where = ", ".join(f"{called} on {node}" for node, called, _ in row.assigned)
                raise Refused(f"The module {name} is assigned ({where}); unassign it first.")
            self._store.modules.remove(name)

    def roll(self, module: str, node: str | None = None, timeout: float | None = None) -> Iterator[Moved]:
        """Move every node (or one) to a module's newest version, each once the one before has applied it.

        A node that is there already is passed over if it has reported so without failures, else waited for. The last
        step is the first that isn't fine. `timeout` in seconds is for each; None waits without end.
        """
        newest = self._newest(module)
        nodes = {name: None for name, _, _ in self._module_row(newest).assigned if node in (None, name)}
        if not nodes:
            if node is not None:
                find_node(self._store, node)
            raise Refused(f"The module {module} is not assigned to {node or 'any node'}, so there is nothing to move.")
        for name in nodes:
            declared = self._move(module, newest.number, name)
            if declared is None:
                continue
            said: Outcome | None = None
            if isinstance(declared, Declared) and declared.has_spoken:
                said = self._wait(self._store, name, declared.serial, timeout)
            moved = Moved(declared, said)
            yield moved
            if not moved.is_fine:
                return

    def ports(self) -> tuple[PortRow, ...]:
        """Every host port that is assigned or not yet free again, by node and number."""
        rows = [row for name, one in self._store.arrangements.all().items() for row in self._port_rows(name, one)]
        return tuple(sorted(rows, key=lambda row: (row.node, row.port.number, row.port.protocol)))

    @property
    def port_range(self) -> PortRange:
        """Where host ports are taken from."""
        return self._store.settings.port_range

    def set_port_range(self, within: PortRange) -> None:
        """Take host ports from there from now on; those that are assigned stay."""
        self._store.settings.set_port_range(within)

    def _change(
        self, name: str, alter: Callable[[Arrangement], Arrangement], *, anyway: bool = False
    ) -> Declared | Waits:
        with self._store.transaction():
            # The keys too: else one that is retired in between would count again for this node.
            declared = change(self._store, self._keys(), name, alter, self._clock(), anyway=anyway)
        poke.poke(self._state)
        return declared

    def _move(self, module: str, version: int, name: str) -> Declared | Waits | None:
        """Move one node; None if it is there and well."""
        node, arrangement = find_node(self._store, name), self._store.arrangements.get(name)
        if any(one.module == module and one.version != version for one in arrangement.assignments):
            return self._change(name, lambda before: assigning.roll(before, module, version))
        wanted = self._store.declarations.wanted(name)
        if self._store.arrangements.waits(name) or wanted is None:
            return None
        if outcome(node, wanted.serial, wanted.declared) == Applied({}):
            return None
        return Declared(name, wanted.serial, node.has_spoken)

    def _earlier(self, name: str, to: int | None) -> Arrangement:
        history = self._store.declarations.history(name)
        if to is not None:
            kept = self._store.arrangements.kept(name, to)
            if kept is None:
                serials = ", ".join(str(one.serial) for one in history) or "none"
                raise Refused(f"No declaration {to} of {name} is kept; kept are {serials}.")
            return kept
        for wanted in history[1:]:
            kept = self._store.arrangements.kept(name, wanted.serial)
            if kept is not None and unsealed(items_of(wanted)) != unsealed(items_of(history[0])):
                return kept
        raise Refused(f"{name} was never declared anything else, so there is nothing that it could go back to.")

    def _newest(self, name: str) -> Version:
        newest = self._store.modules.newest(name)
        if newest is None:
            hint = nearest(name, self._store.modules.names()) or "."
            raise Refused(
                f"There is no module {quoted(name)}{hint} See `agent control module list`; `agent control module add "
                "FILE` adds one."
            )
        return newest

    def _module_row(self, newest: Version) -> ModuleRow:
        name = newest.module.name
        assigned = tuple(
            (node, one.name, one.version)
            for node, arrangement in self._store.arrangements.all().items()
            for one in arrangement.assignments
            if one.module == name
        )
        return ModuleRow(name, newest.number, newest.added, assigned)

    def _port_rows(self, name: str, arrangement: Arrangement) -> Iterator[PortRow]:
        for assignment in arrangement.assignments:
            for called, port in assignment.ports.items():
                yield PortRow(name, port, assignment.name, called, None)
        node = find_node(self._store, name)
        declared = declared_ids(self._store, node)
        for released in arrangement.released:
            if assigning.may_be_open(released, node, declared):
                yield PortRow(name, released.port, released.assignment, "", released.serial)


def _own_list(document: Document, settings: Mapping[str, str]) -> OwnList | None:
    return OwnList(document, dict(settings)) if document.items else None
