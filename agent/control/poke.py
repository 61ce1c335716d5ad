"""A word from another process that something is due: a datagram to `STATE/control/poke`.

It only hurries: whoever pokes has committed to the store before, and the service looks there every second
anyway. So a poke that is lost, or finds nobody, loses nothing.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.host.failures import in_words

_NAME = "poke"
_POKE, _END = b"\x01", b""


def poke(state: Path) -> None:
    """Tell the service, if there is one, to look into the store now."""
    with suppress(OSError), _folder(state) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
        caller.setblocking(False)
        caller.sendto(_POKE, f"{folder}/{_NAME}")


@contextmanager
def listen(state: Path, poked: Callable[[], None]) -> Iterator[None]:
    """For the block, have `poked` called, in a thread of its own, whenever somebody pokes."""
    path = state / "control" / _NAME
    with in_words("Listening at", path), _folder(state) as folder:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with suppress(FileNotFoundError):
            path.unlink()  # what a killed service left; the lock says that no other one listens there
        before = os.umask(0o177)
        try:
            listener.bind(f"{folder}/{_NAME}")
        finally:
            os.umask(before)
    thread = threading.Thread(target=_hear, args=(listener, poked), name="poke", daemon=True)
    thread.start()
    try:
        yield
    finally:
        _end(state)
        thread.join()
        listener.close()


@contextmanager
def _folder(state: Path) -> Iterator[str]:
    """A short name for the control plane's folder: a socket's address has room for 108 bytes only (unix(7))."""
    descriptor = os.open(state / "control", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _hear(listener: socket.socket, poked: Callable[[], None]) -> None:
    while listener.recv(1) != _END:
        poked()


def _end(state: Path) -> None:
    with _folder(state) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
        caller.sendto(_END, f"{folder}/{_NAME}")
