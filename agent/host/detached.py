"""Programs that live on by themselves: not our children, in a session of their own, untouched by our death.

- The caller learns pid and start time, and can record them, before the program runs: a crash leaves nothing
  running that was not recorded, and all that runs carries its environment from the very start.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.host import accounts, commands, launcher, processes
from agent.host.accounts import Account
from agent.host.commands import CommandFailed
from agent.host.failures import in_words
from agent.host.processes import Process

_PATIENCE = 30.0


def spawn(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    user: str,
    directory: Path,
    log: Path,
    record: Callable[[Process], None],
) -> Process:
    """Starts `argv` as `user`, with no more than `environment` (and the clean one), umask 0022.

    `record` is called with the process while it still waits to become the program; if it raises, the program
    never runs. Output is appended to `log` (0600, ours). CommandFailed says why it can't be executed.
    """
    account = accounts.account(user)
    environment = commands.clean_environment(account, environment)
    program = commands.resolve(argv, environment["PATH"])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(_PATIENCE)
        _launch(
            [*_identity(theirs, account), str(directory), *program],
            environment=environment,
            keep=theirs.fileno(),
            log=log,
        )
        theirs.close()
        process = _introduction(argv, ours)
        record(process)
        complaint = _release(argv, ours)
    if complaint:
        raise CommandFailed(argv, f"can't start as {user} in {directory}: {complaint}.")
    return process


def _identity(channel: socket.socket, account: Account) -> list[str]:
    groups = ",".join(str(group) for group in account.groups)
    return [str(channel.fileno()), str(account.uid), str(account.gid), groups]


def _launch(arguments: list[str], *, environment: Mapping[str, str], keep: int, log: Path) -> None:
    with in_words("Opening the log", log):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        output = os.open(log, flags, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        commands.start(
            [sys.executable, "-I", "-S", launcher.__file__, *arguments],
            stdin=nothing,
            stdout=output,
            stderr=output,
            environment=environment,
            directory=Path("/"),
            keep=[keep],
        ).wait()
    finally:
        os.close(nothing)
        os.close(output)


def _introduction(argv: Sequence[str], channel: socket.socket) -> Process:
    with _in_words(argv), channel.makefile("rb") as lines:
        text = lines.readline()
    process = processes.find(int(text)) if text.endswith(b"\n") else None
    if process is None:
        raise CommandFailed(argv, "can't start: its launcher ended early; see its log.")
    return process


def _release(argv: Sequence[str], channel: socket.socket) -> str:
    """Lets the program run; what its launcher complains of, empty when it became the program."""
    with _in_words(argv), channel.makefile("rb") as answer:
        channel.sendall(launcher.GO)
        return answer.read().decode(errors="replace")


@contextmanager
def _in_words(argv: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandFailed(argv, "can't start: its launcher does not answer; see its log.") from error
