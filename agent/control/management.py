"""The broker's management, reached as control.toml says."""

from __future__ import annotations

from agent.control.accounts import Bounds, BrokerAccounts, Management
from agent.control.config import Settings


def connect_accounts(settings: Settings) -> BrokerAccounts:
    """The accounts of the broker that these settings name; nothing is sent yet."""
    management = Management(settings.management, settings.account, settings.password, frozenset(settings.fingerprints))
    return BrokerAccounts(management, Bounds())
