"""When a service or container counts as ready, and waiting for it while watching that it lives.

- One that ends while it is waited for has failed at once, however much time was left.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from agent import broker, fields
from agent.errors import AgentError, Unavailable
from agent.host.failures import reason
from agent.kinds import watches
from agent.resources import specs

# Why it isn't ready yet, to follow a colon; None when it is. Gets the seconds that are left.
Probe = Callable[[float], "str | None"]
# Runs the command of a CommandReady, as a probe.
RunCommand = Callable[[specs.CommandReady, float], "str | None"]
# Logs in at the broker of a LoginReady, filled with these late values, within so many seconds; AgentError if not.
LogIn = Callable[[specs.LoginReady, Mapping[str, str], float], None]

_POLL = 0.1


class Ended(Unavailable):
    """It ended while it was waited for."""


class NotReady(Unavailable):
    """The time was over; the message says what was waited for and how it stood."""


def wait(probe: Probe, seconds: float, is_alive: Callable[[], bool]) -> None:
    """Return once the probe is content and the service alive; Ended or NotReady otherwise."""
    deadline = time.monotonic() + seconds
    while True:
        why = probe(max(deadline - time.monotonic(), _POLL))
        # Asked after the probe: another program may have answered it.
        if not is_alive():
            raise Ended("it ended")
        if why is None:
            return
        if time.monotonic() >= deadline:
            raise NotReady(why)
        time.sleep(_POLL)


def settle(seconds: float, is_alive: Callable[[], bool]) -> None:
    """Return when a service that doesn't say when it is ready has lived so long; Ended otherwise."""
    deadline = time.monotonic() + seconds
    while is_alive():
        if time.monotonic() >= deadline:
            return
        time.sleep(min(seconds, _POLL))
    raise Ended("it ended")


def probe(
    when: specs.Readiness,
    run: RunCommand,
    late: Mapping[str, str],
    touched: str,
    log_in: LogIn,
    linger: float = 0.0,
) -> Probe:
    """How it is asked whether it is ready; `touched` is its file's look before the start.

    `linger` (seconds): how long a connection must last, where something that accepts for it may stand before it.
    """
    if isinstance(when, specs.TcpReady):
        return lambda left: _connect(when, left, linger)
    if isinstance(when, specs.CommandReady):
        return lambda left: run(when, left)
    if isinstance(when, specs.FileReady):
        return lambda left: _look(when, touched)
    if isinstance(when, specs.LoginReady):
        return lambda left: _try_login(when, late, left, log_in)
    raise AssertionError(when)


def log_in(when: specs.LoginReady, late: Mapping[str, str], seconds: float) -> None:
    """Log in at the broker and leave again."""
    login = broker.Login(
        address=broker.parse_address(when.address),
        account=when.account,
        password=when.password.render(late.__getitem__),
        pins=frozenset({fields.fingerprint(when.fingerprint.render(late.__getitem__), "ready.login.fingerprint")}),
    )
    broker.connect(login, patience=seconds).close()


def _connect(when: specs.TcpReady, left: float, linger: float) -> str | None:
    try:
        with socket.create_connection((when.port.address, when.port.number), timeout=left) as connection:
            if linger:
                connection.settimeout(linger)
                with suppress(TimeoutError):
                    if not connection.recv(1):
                        return f"a connection to {when.port} is closed at once"
    except OSError as error:
        return f"nothing accepts a connection to {when.port} ({reason(error)})"
    return None


def _look(when: specs.FileReady, touched: str) -> str | None:
    look = watches.look_of(when.path)
    if not look:
        return f"{when.path} is not there"
    return None if look != touched else f"{when.path} has not been written since the start"


def _try_login(when: specs.LoginReady, late: Mapping[str, str], left: float, log_in: LogIn) -> str | None:
    try:
        log_in(when, late, left)
    except AgentError as error:
        return f"{when.account} can't log in at {when.address}: {error}"
    return None
