"""One broker for all tests that need one; each finds it empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.control.accounts import BrokerAccounts
from tests.broker.rabbit import Rabbit


@pytest.fixture(scope="session")
def rabbit_process() -> Iterator[Rabbit]:
    rabbit = Rabbit()
    try:
        rabbit.start()
        yield rabbit
    finally:
        rabbit.remove()


@pytest.fixture
def rabbit(rabbit_process: Rabbit) -> Iterator[Rabbit]:
    """A running broker with the account `control` and nothing else."""
    yield rabbit_process
    rabbit_process.clear()


@pytest.fixture
def accounts(rabbit: Rabbit) -> BrokerAccounts:
    """The control plane's hand on the broker, with exchange and queues made."""
    accounts = rabbit.accounts()
    accounts.ensure_topology()
    return accounts
