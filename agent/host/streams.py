"""What a program is given and what it says, on our side of it: files in memory, pipes, and who listens to them.

A deadline is a moment of `time.monotonic`, in seconds.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO

POLL = 0.1
"""How often a program that runs is listened to, in seconds."""

_LINE_LENGTH = 300
_CHUNK = 65536


@contextmanager
def memory(content: bytes = b"") -> Iterator[int]:
    """A file in memory. Unlike a pipe, a daemon that a program leaves behind doesn't make us wait for it."""
    descriptor = os.memfd_create("command")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def content(descriptor: int) -> bytes:
    """All that is in a file in memory."""
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


@contextmanager
def pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """The end that is read, and the end that is written."""
    source, sink = os.pipe()
    with FileIO(source) as reading, FileIO(sink, "w") as writing:
        yield reading, writing


def pour(sink: int, chunk: bytes, deadline: float, listeners: Sequence[Listener]) -> bool:
    """Whether the program took all of it; TimeoutError when it takes nothing in time."""
    rest = memoryview(chunk)
    while rest:
        for listener in listeners:
            listener.listen()
        if time.monotonic() >= deadline:
            raise TimeoutError
        if select.select([], [sink], [], POLL)[1]:
            try:
                rest = rest[os.write(sink, rest) :]
            except BrokenPipeError:
                return False
    return True


def take(source: int, deadline: float) -> bytes:
    """What comes next, b"" at the end; TimeoutError when nothing comes in time."""
    if not select.select([source], [], [], max(0.0, deadline - time.monotonic()))[0]:
        raise TimeoutError
    return os.read(source, _CHUNK)


class Listener:
    """Hears what a program has written to a file in memory since it was asked last."""

    def __init__(self, descriptor: int, tell: Callable[[str], None]) -> None:
        self._descriptor, self._tell, self._read, self._rest = descriptor, tell, 0, b""

    def listen(self, *, ended: bool = False) -> None:
        """Tell each line that is complete; the last one too when the program has `ended`."""
        while text := os.pread(self._descriptor, _CHUNK, self._read):
            self._read += len(text)
            # A carriage return ends a line too: that is how programs draw progress.
            *lines, self._rest = (self._rest + text).replace(b"\r", b"\n").split(b"\n")
            self._tell_all(lines)
        if ended:
            self._tell_all([self._rest])

    def _tell_all(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            words = "".join(filter(str.isprintable, line.decode(errors="replace"))).strip()
            if words:
                self._tell(words[:_LINE_LENGTH])


def last_words(*outputs: bytes) -> str:
    """The last line of the first of these that has one, or that there is none, as the end of a sentence."""
    for output in outputs:
        lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
        if lines:
            line = "".join(character for character in lines[-1] if character.isprintable())
            return line[:_LINE_LENGTH]
    return "it said nothing."
