"""The agent's own copy of its file, STATE/agent: what services and units point at, whatever becomes of the first one.

- It is written beside its place, durably, and put there by a rename: it is the old or the new, and what runs goes on.
- It is told from another by what the build wrote down, never by reading all of it; a bundle may be gigabytes.
- It shares its blocks with the file that it was copied from where the file system can, and never its inode: whoever
  writes to that one doesn't change what services run.
- A bundle's blobs are digested once for each device, inode, size and time of writing, not at every start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from agent.bundle import Bundle, open_bundle, pack, verify
from agent.errors import AgentError, Refused
from agent.host import files, locks
from agent.node import folder, program
from agent.node.program import Program

_MODE = 0o755
_NEW = Path("run/agent.new")
_TURN = Path("run/agent.new.lock")
# Beside the unpacked code: that is the one folder which is there before anything is raised.
_VERIFIED = Path("runtime/verified")
_REMEMBERED = 8


def place(state: Path) -> Path:
    """Where the copy lies."""
    return state / "agent"


def is_it(running: Path | None, state: Path) -> bool:
    """Whether the running file is the copy itself, which nobody has brought."""
    with suppress(OSError):
        return running is not None and running.samefile(place(state))
    return False


def settled(state: Path) -> Program | None:
    """What the copy is; None when there is none that is whole."""
    return program.of_file(place(state))


@contextmanager
def staged(running: Path | None, state: Path, bundle: Bundle, *, needed: bool) -> Iterator[Callable[[], None]]:
    """For the block, a copy of the running file with this bundle lies beside its place; what is given puts it there.

    Nothing is written when that isn't `needed`. Refused in a source tree; Fatal while another process is at the same.
    """
    if running is None:
        raise Refused("this runs from a source tree; build the one file with ./build.sh and run that")
    new = state / _NEW
    if not needed:
        if os.path.lexists(new):  # of one that was killed, unless somebody is at it
            with suppress(locks.Held), locks.hold(state / _TURN):
                files.remove(new, uid=os.geteuid())
        yield lambda: None
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.hold(state / _TURN))
        except locks.Held as error:
            raise folder.running(state, error.holder) from error
        try:
            _write(running, new, bundle, state)
            yield lambda: files.move(new, place(state), uid=os.geteuid())
        finally:
            with suppress(AgentError):
                files.remove(new, uid=os.geteuid())


def carried(state: Path, bundle: Bundle) -> Bundle:
    """The same bundle as the copy carries it: that stays, whatever becomes of the file or folder it came from."""
    copy = place(state)
    return open_bundle(copy) if bundle.place.is_dir() else replace(bundle, place=copy)


def verify_once(bundle: Bundle, state: Path) -> None:
    """Read every blob of a file that was not read whole before. Refused names the first that isn't what was packed."""
    if bundle.place.is_dir():  # it was read when it was opened, for want of a manifest
        return
    line = _line(bundle)
    if line in _verified(state):
        return
    verify(bundle)
    if line == _line(bundle):
        _note(line, state)


def _write(running: Path, new: Path, bundle: Bundle, state: Path) -> None:
    if bundle.place.is_dir():
        pack(running, bundle.place, new)
        return
    line = _line(bundle)
    files.copy(running, new, mode=_MODE, uid=os.geteuid(), gid=os.getegid())
    if line in _verified(state) and line == _line(bundle):
        _note(_line(bundle, new), state)


def _line(bundle: Bundle, at: Path | None = None) -> str:
    """Which file it is, as far as that can be told without reading it, and which bundle it carries."""
    try:
        status = (at or bundle.place).stat()
    except OSError:
        return ""
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {bundle.digest}"


def _verified(state: Path) -> list[str]:
    with suppress(AgentError):
        return (files.read(state / _VERIFIED, uid=os.geteuid()) or b"").decode("ascii", "replace").splitlines()
    return []


def _note(line: str, state: Path) -> None:
    # What can't be written down is digested again.
    with suppress(AgentError):
        lines = [*(one for one in _verified(state) if one != line), line][-_REMEMBERED:]
        text = "".join(f"{one}\n" for one in lines)
        files.write(state / _VERIFIED, text.encode("ascii"), mode=0o600, uid=os.geteuid(), gid=os.getegid())
