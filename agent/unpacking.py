"""The part of the start-up that is needed once a build: the code is unpacked, and that of older builds removed.

Lies in the file beside `agent/start.py`, which loads it only then; the same holds for what it imports and how it is
written.

- What is unpacked is never changed afterwards: it is written beside its place with its compiled code, flushed to the
  disk, renamed. The list of sizes by which each start knows that all of it is there is written last.
- Native code lies in the file once for each platform; what fits this Python is unpacked, the rest is left.
- The current build and the one that was used before it stay; older ones that nobody runs from go.
"""

import fcntl
import os
import py_compile
import shutil
import zipfile
import zlib

COMPLETE = "complete"
CODE = "site-packages"
NATIVE = "native"


def unpack(file: str, folder: str, platform: str, tag: str) -> None:
    """Unpack the code of `file` for `platform` and the Python `tag` into `folder`, which appears whole or not at all.

    Called with the runtime folder's lock held. Raises OSError when it can't be written there and ValueError
    when the archive is damaged.
    """
    runtime = os.path.dirname(folder)
    for name in os.listdir(runtime):
        # Under the lock nobody else is unpacking: this is what a start that was killed has left.
        if name.endswith(".part"):
            left = os.path.join(runtime, name)
            shutil.rmtree(left) if os.path.isdir(left) else os.unlink(left)
    part = folder + ".part"
    before = os.umask(0o077)
    try:
        write(file, part, folder, platform, tag)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)  # a full disk is not to stay full for it
        raise
    finally:
        os.umask(before)
    if os.path.lexists(folder):
        # A rename does not replace a folder that holds something. The damaged one goes first, under a name
        # that the next start removes should this one be killed here.
        damaged = folder + ".damaged.part"
        os.rename(folder, damaged)
        os.rename(part, folder)
        shutil.rmtree(damaged)
    else:
        os.rename(part, folder)
    flush(runtime)


def write(file: str, part: str, folder: str, platform: str, tag: str) -> None:
    """Write what is unpacked to `part`, to be renamed to `folder`, and return once all of it is on the disk."""
    folders, files = {part}, []
    os.mkdir(part)
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = place_of(member.filename, platform, tag)
                if not name:
                    continue
                path = os.path.join(part, name)
                parent = os.path.dirname(path)
                os.makedirs(parent, exist_ok=True)
                while parent not in folders:
                    folders.add(parent)
                    parent = os.path.dirname(parent)
                with archive.open(member) as source, open(path, "xb") as target:
                    shutil.copyfileobj(source, target)
                files.append(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    for name in [name for name in files if name.endswith(".py")]:
        compiled = py_compile.compile(
            os.path.join(part, name),
            dfile=os.path.join(folder, name),
            quiet=2,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        if compiled:
            folders.add(os.path.dirname(compiled))
            files.append(os.path.relpath(compiled, part))
    with open(os.path.join(part, COMPLETE), "x", encoding="utf-8") as stream:
        for name in files:
            stream.write("{} {}\n".format(os.stat(os.path.join(part, name)).st_size, name))
        stream.write("end {}\n".format(len(files)))
    for path in [os.path.join(part, name) for name in files] + [os.path.join(part, COMPLETE)] + sorted(folders):
        flush(path)


def place_of(member: str, platform: str, tag: str) -> str:
    """Return where a member of the archive is unpacked to, below the code's folder; empty when it isn't.

    `native/PLATFORM/TAG/NAME` becomes `site-packages/NAME` where it is this platform's and of this Python, or of any
    (`abi3`). One of this Python's alone gets the ending that every Python takes: those for musl don't agree on the
    whole one (CPython issue 87278).
    """
    names = member.split("/")
    if not names[-1] or ".." in names:
        return ""
    if names[0] == NATIVE and names[1:2] == [platform] and names[2:3] in ([tag], ["abi3"]):
        last = names[-1] if names[2] == "abi3" else names[-1].split(".")[0] + ".so"
        names = [CODE] + names[3:-1] + [last]
    return "/".join(names) if names[0] == CODE else ""


def remove_older(runtime: str, build: str) -> None:
    """Remove the code of builds other than `build` and the one that was used last of the others, except what a running
    agent uses. Called with the runtime folder's lock held; what can't be removed stays."""
    used = {}  # type: dict[str, float]
    others = [name for name in os.listdir(runtime) if "-" in name and name.split("-")[0] != build]
    for name in others:
        try:
            moment = os.stat(os.path.join(runtime, name, COMPLETE)).st_mtime
        except OSError:
            moment = 0.0
        used[name.split("-")[0]] = max(moment, used.get(name.split("-")[0], 0.0))
    previous = max(used, key=lambda other: used[other], default="")
    for name in others:
        if name.split("-")[0] == previous:
            continue
        folder = os.path.join(runtime, name)
        lock = -1
        try:
            try:
                lock = os.open(os.path.join(folder, COMPLETE), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except FileNotFoundError:
                pass  # damaged: nobody runs from it
            # Whoever waits for the lock meanwhile sees that the file it is on has gone, and unpacks the code anew.
            os.rename(folder, folder + ".part")
            shutil.rmtree(folder + ".part")
        except OSError:
            continue
        finally:
            if lock >= 0:
                os.close(lock)


def flush(path: str) -> None:
    """Return once what was written to the file or folder `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
