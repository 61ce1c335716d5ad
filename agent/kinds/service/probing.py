"""How a service is asked whether it is ready; its command runs as the service itself does.

- What is said of a probe that fails names the command as declared, never what was filled into it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from agent.host import accounts, commands
from agent.host.commands import CommandFailed
from agent.kinds import readiness
from agent.kinds.readiness import LogIn, Probe
from agent.resources import specs

_COMMAND_SECONDS = 30.0


def probe(when: specs.Readiness, spec: specs.Service, late: Mapping[str, str], touched: str, log_in: LogIn) -> Probe:
    """The probe of a service; `touched` is its file's look before the start."""
    return readiness.probe(when, lambda command, left: _run(command, spec, late, left), late, touched, log_in)


def _run(when: specs.CommandReady, spec: specs.Service, late: Mapping[str, str], left: float) -> str | None:
    account = accounts.account(spec.user)
    try:
        commands.run(
            [word.render(late.__getitem__) for word in when.command],
            environment={name: value.render(late.__getitem__) for name, value in spec.environment},
            directory=spec.directory,
            user=spec.user if account.uid != os.geteuid() else None,
            timeout=min(left, _COMMAND_SECONDS),
        )
    except CommandFailed as error:
        return f"`{shlex.join(word.encode() for word in when.command)}` {error.reason}"
    return None
