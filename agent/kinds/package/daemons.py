"""Keeping a package's own daemons from starting: while it is installed, and at the next boot.

- During an installation /usr/sbin/policy-rc.d says no to every start (Debian's invoke-rc.d(8)). One that was
  there before comes back as it was: the very same file, also after the agent was killed in between.
  Only Debian's packages start daemons: those of rpm leave it to systemd's presets, which start nothing, and OpenRC's
  services wait for somebody who adds them to a runlevel.
- The units that the declaration names are masked before their package is installed, on every distribution: a preset
  may enable them for the next boot. What was masked is noted first, so that nothing of the machine's own is ever
  unmasked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent.errors import Unavailable
from agent.host import commands, files
from agent.host.failures import in_words
from agent.kinds.package.note import Note

_MARK = "# mesh-agent: temporary"
_NOTHING = "/dev/null"


@dataclass(frozen=True, slots=True)
class Policy:
    """The machine's policy-rc.d."""

    path: Path = Path("/usr/sbin/policy-rc.d")

    def has_leftovers(self) -> bool:
        """Whether an installation that was cut short has left something of ours."""
        return self._is_ours() or os.path.lexists(self._saved) or os.path.lexists(self._next)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """No package starts a daemon during the block; afterwards all is as before the first such block."""
        self._place()
        try:
            yield
        finally:
            self._restore()

    @property
    def _saved(self) -> Path:
        return self.path.with_name(f"{self.path.name}.mesh-agent-saved")

    @property
    def _next(self) -> Path:
        return self.path.with_name(f"{self.path.name}.mesh-agent-next")

    def _is_ours(self) -> bool:
        with in_words("Reading", self.path):
            try:
                if not stat.S_ISREG(self.path.lstat().st_mode):
                    return False
                with self.path.open("rb") as file:
                    return _MARK.encode() in file.read(4096).splitlines()
            except FileNotFoundError:
                return False

    def _place(self) -> None:
        if self._is_ours():
            return
        content = (
            f"#!/bin/sh\n{_MARK}\n"
            "# Keeps packages from starting their own daemons while they are installed; it goes by itself.\n"
            f"# What was here before, if anything, is kept as {self._saved}.\n"
            "exit 101\n"
        )
        with in_words("Replacing", self.path):
            if os.path.lexists(self._saved) and not os.path.lexists(self.path):
                self._saved.rename(self.path)
            # What is here is the machine's own; what was saved is an older one, or the same file once more.
            self._saved.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                os.link(self.path, self._saved, follow_symlinks=False)
            _sync(self.path.parent)
        files.write(self._next, content.encode(), mode=0o755, uid=0, gid=0)
        with in_words("Replacing", self.path):
            self._next.rename(self.path)
            _sync(self.path.parent)

    def _restore(self) -> None:
        is_ours = self._is_ours()
        with in_words("Restoring", self.path):
            if os.path.lexists(self._saved) and (is_ours or not os.path.lexists(self.path)):
                self._saved.rename(self.path)
            elif is_ours:
                self.path.unlink()
            self._saved.unlink(missing_ok=True)
            self._next.unlink(missing_ok=True)
            _sync(self.path.parent)


@dataclass(frozen=True, slots=True)
class Units:
    """The folder of the machine's own systemd units, which win over those of packages. `find` finds a program."""

    folder: Path = Path("/etc/systemd/system")
    find: Callable[[str], str | None] = commands.find

    def check(self, units: Sequence[str]) -> None:
        """Unavailable when one can't be masked, because the machine has a unit of its own by that name."""
        for unit in units:
            path = self.folder / unit
            if os.path.lexists(path) and not _is_mask(path):
                raise Unavailable(
                    f"{path} is this machine's own unit, so it can't be masked; "
                    "move it away or take it out of the package's masks."
                )

    def intend(self, units: Sequence[str], before: Note | None) -> Note:
        """What masking these would do, with what an earlier, interrupted try did already."""
        done = before or Note()
        masks = [unit for unit in units if unit in done.masks or not os.path.lexists(self.folder / unit)]
        ways = (self.folder, *self.folder.parents) if masks else ()
        missing = [folder for folder in ways if folder in done.folders or not folder.is_dir()]
        return Note(tuple(masks), tuple(missing))

    def mask(self, note: Note) -> None:
        """Do what the note says."""
        with in_words("Masking units in", self.folder):
            for folder in reversed(note.folders):
                folder.mkdir(mode=0o755, exist_ok=True)
            for unit in note.masks:
                with suppress(FileExistsError):
                    (self.folder / unit).symlink_to(_NOTHING)
            if note.masks:
                _sync(self.folder)

    def unmask(self, package: str, note: Note) -> None:
        """Take our masks away and disable those units, so that nothing starts by itself at the next boot."""
        for unit in note.masks:
            path = self.folder / unit
            if not _is_mask(path):
                continue
            self._disable(package, unit)
            with in_words("Unmasking", path):
                path.unlink(missing_ok=True)
        for folder in note.folders:
            with suppress(OSError):  # One that holds something by now stays.
                folder.rmdir()

    def _disable(self, package: str, unit: str) -> None:
        if self.find("deb-systemd-helper"):
            # It insists on being called for a package; it disables without asking a running systemd.
            environment = {"DPKG_MAINTSCRIPT_PACKAGE": package}
            commands.run(["deb-systemd-helper", "disable", unit], environment=environment)
            return
        # What a preset has enabled are links to the unit in folders beside it, as systemd.unit(5) says.
        with in_words("Disabling units in", self.folder):
            for folder in (*self.folder.glob("*.wants"), *self.folder.glob("*.requires")):
                (folder / unit).unlink(missing_ok=True)


def _is_mask(path: Path) -> bool:
    try:
        return str(path.readlink()) == _NOTHING
    except OSError:
        return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
