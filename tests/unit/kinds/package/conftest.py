from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.kinds.package import rpms
from tests.unit.kinds.package.rpms import Root


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rpms.build(tmp_path_factory.mktemp("rpms"))


@pytest.fixture
def root(packages: Path, tmp_path: Path) -> Root:
    made = Root(tmp_path, packages)
    made.database.mkdir(parents=True)
    made.use(f"file://{packages}")
    return made
