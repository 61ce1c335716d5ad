"""The one door to other programs.

- A failure prints the command so that a person can paste it, and the last thing that the program said.
- A program gets a clean environment: PATH, LANG, and HOME, USER, LOGNAME of the account it runs as.
- What overstays its time-out is ended, with all of its process group.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Unavailable
from agent.host import accounts, streams
from agent.host.accounts import Account

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ran to its end; `code` is its exit status, negative for the signal that ended it."""

    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes


class CommandFailed(Unavailable):
    """`argv` didn't do its work: `reason` says why; `finished` is None when it didn't run to its end."""

    def __init__(self, argv: Sequence[str], reason: str, finished: Finished | None = None) -> None:
        super().__init__(f"`{shlex.join(argv)}` {reason}")
        self.argv = tuple(argv)
        self.reason = reason
        self.finished = finished


class ProgramMissing(CommandFailed):
    """The program is not on this machine."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(argv, f"can't run: {argv[0]} is not on this machine; install what brings it.")


def find(program: str) -> str | None:
    """The absolute path of a program on PATH (this module's, not this process's)."""
    return shutil.which(program, path=PATH)


def resolve(argv: Sequence[str], path: str = PATH) -> list[str]:
    """`argv` with its program's absolute path, found on `path`; one that names a folder stays as it is."""
    program = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=path)
    if program is None:
        raise ProgramMissing(argv)
    return [program, *argv[1:]]


def clean_environment(account: Account, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a program of this account is started with; `more` is added and wins."""
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        **(more or {}),
    }


def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    directory: Path = Path("/"),
    user: str | None = None,
    timeout: float = 60.0,
    check: bool = True,
) -> Finished:
    """Runs a program to its end (seconds: `timeout`), as `user` when one is given.

    CommandFailed when it exits other than 0 (with `check`), takes too long or can't start; ProgramMissing
    when it isn't there; Refused for an unknown user.
    """
    account = accounts.account(user) if user is not None else accounts.current()
    with streams.memory(stdin) as source, streams.memory() as output, streams.memory() as errors:
        process = start(
            resolve(argv),
            stdin=source,
            stdout=output,
            stderr=errors,
            environment=clean_environment(account, environment),
            directory=directory,
            account=account if user is not None else None,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(argv, f"took longer than {timeout:g} seconds and was ended.") from error
        finally:
            _end_group(process)
        finished = Finished(tuple(argv), code, streams.content(output), streams.content(errors))
    if check and code != 0:
        raise CommandFailed(argv, f"{_ending(code)}: {streams.last_words(finished.stderr, finished.stdout)}", finished)
    return finished


def feed(
    argv: Sequence[str],
    chunks: Iterable[bytes],
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float,
    tell: Callable[[str], None],
) -> Finished:
    """Runs a program to its end (seconds: `timeout`) with `chunks` as its input; one at a time is in memory.

    `tell` gets each line that it says, on either stream, while it runs. CommandFailed and ProgramMissing as `run`
    raises them. When a chunk can't be had, the program is ended before it could take its input for whole.
    """
    deadline = time.monotonic() + timeout
    with streams.memory() as output, streams.memory() as errors, streams.pipe() as (source, sink):
        listeners = (streams.Listener(output, tell), streams.Listener(errors, tell))
        process = start(
            resolve(argv),
            stdin=source.fileno(),
            stdout=output,
            stderr=errors,
            environment=clean_environment(accounts.current(), environment),
            directory=Path("/"),
        )
        source.close()
        os.set_blocking(sink.fileno(), False)
        try:
            for chunk in chunks:
                if not streams.pour(sink.fileno(), chunk, deadline, listeners):
                    break
            sink.close()
            code = _await(process, deadline, listeners)
        except TimeoutError as error:
            raise CommandFailed(argv, f"took longer than {timeout:g} seconds and was ended.") from error
        finally:
            _end_group(process)
        finished = Finished(tuple(argv), code, streams.content(output), streams.content(errors))
    if code != 0:
        raise CommandFailed(argv, f"{_ending(code)}: {streams.last_words(finished.stderr, finished.stdout)}", finished)
    return finished


def read(argv: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float) -> Iterator[bytes]:
    """Runs a program to its end (seconds: `timeout`), yielding what it writes to its output as that comes, in pieces.

    It is ended when whoever asked stops listening. After the last piece CommandFailed, as `run` raises it: what was
    yielded is whole only once the iterator has ended.
    """
    deadline = time.monotonic() + timeout
    with streams.memory() as errors, streams.pipe() as (source, sink):
        process = start(
            resolve(argv),
            stdin=subprocess.DEVNULL,
            stdout=sink.fileno(),
            stderr=errors,
            environment=clean_environment(accounts.current(), environment),
            directory=Path("/"),
        )
        sink.close()
        try:
            while chunk := streams.take(source.fileno(), deadline):
                yield chunk
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise CommandFailed(argv, f"took longer than {timeout:g} seconds and was ended.") from error
        finally:
            _end_group(process)
        finished = Finished(tuple(argv), code, b"", streams.content(errors))
    if code != 0:
        raise CommandFailed(argv, f"{_ending(code)}: {streams.last_words(finished.stderr, finished.stdout)}", finished)


def start(
    argv: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    environment: Mapping[str, str],
    directory: Path,
    account: Account | None = None,
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a program in a session of its own, with these descriptors and only `keep` of the others.

    For `run` and what detaches programs; others call those. CommandFailed when it can't start.
    """
    try:
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
            pass_fds=keep,
            umask=0o022,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=account.groups if account else None,
        )
    except OSError as error:
        what = error.strerror.lower() if error.strerror else str(error)
        raise CommandFailed(argv, f"can't start: {error.filename or argv[0]}: {what}.") from error


def _await(process: subprocess.Popen[bytes], deadline: float, listeners: Sequence[streams.Listener]) -> int:
    while True:
        try:
            code = process.wait(streams.POLL)
        except subprocess.TimeoutExpired:
            code = None
        for listener in listeners:
            listener.listen(ended=code is not None)
        if code is not None:
            return code
        if time.monotonic() >= deadline:
            raise TimeoutError


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a program that is still running, and its group; one that has ended leaves its daemons alone."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"failed with exit status {code}"
    return f"was ended by {signal.Signals(-code).name}"
