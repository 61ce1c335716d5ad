"""One lab for all its tests, and machines with the built file, or one that carries a bundle of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.built.conftest import pack
from tests.lab.machines import Lab, Machine

# Gives a fresh machine of this name, with a file that carries this bundle (its text) instead of the native one.
MakeMachine = Callable[..., Machine]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with ExitStack() as stack:
        made = Lab()
        stack.callback(made.close)
        made.prepare()
        yield made


@pytest.fixture
def machine(lab: Lab, built_file: Path, tmp_path: Path) -> Iterator[MakeMachine]:
    """Makes machines, which go with the test."""
    with ExitStack() as stack:

        def make(name: str, text: str = "") -> Machine:
            file = pack(built_file, text, {}, tmp_path / name) if text else built_file
            made = lab.machine(name, file)
            stack.callback(made.remove)
            return made

        yield make
