"""What the one file runs first: checks this Python, unpacks the code once, hands over to `agent.cli`.

Assembled into the file as its `__main__.py`. It imports nothing of the agent and only what every Python has,
and its syntax is that of Python 3.6, so that a Python that is too old gets a sentence instead of a traceback.
Nothing in the environment and nothing that another user can write decides which code runs: Python is isolated
(`-I -S`), and the unpacked code lies in a folder of this user's alone. What is unpacked there is never
changed: it is written beside its place with its compiled code, flushed to the disk, renamed, and each start
compares every file's size with the list that was written last, so that what a power failure cut short is
unpacked again.
"""

import os
import sys

OLDEST = (3, 10)
NEEDED = ("_hashlib", "_sqlite3", "_ssl", "ctypes", "json", "shutil", "sqlite3", "ssl", "zipfile", "zlib")
DEFAULT_STATE = "/var/lib/mesh-agent"
COMPLETE = "complete"
CODE = "site-packages"

# Where this process's own file lies, once it is known; `agent.build` reads it from the main module.
AGENT_FILE = ""


class Unfit(Exception):
    """This machine or this file can't run the agent; the message says why and what to do."""


def check_python(version: "tuple[int, int, int]", executable: str) -> None:
    """Raise Unfit for a Python that is too old."""
    if version < OLDEST:
        raise Unfit(
            "this needs Python {}.{} or newer, and {} is Python {}.{}.{}: install a newer one (Debian 12 and "
            "Ubuntu 22.04 have it as python3), or start this file with one that is there, as in "
            "`python3.11 {}`.".format(*OLDEST, executable or "this", *version, AGENT_FILE or "agent")
        )


def check_modules(names: "tuple[str, ...]", executable: str) -> None:
    """Raise Unfit when this Python lacks a part of its standard library, as Debian's python3-minimal does."""
    from importlib.machinery import PathFinder

    missing = [name for name in names if name not in sys.builtin_module_names and not PathFinder.find_spec(name)]
    if missing:
        raise Unfit(
            "{} lacks a part of Python's standard library ({}): install the whole of it, on Debian and "
            "Ubuntu with `apt-get install python3` (python3-minimal is not enough).".format(
                executable or "this Python", ", ".join(missing)
            )
        )


def state_folder(arguments: "list[str]", environment: "dict[str, str]") -> str:
    """Return the state folder's absolute path, as the command line will read it: the last `--state` before a
    `--`, else AGENT_STATE, else the default."""
    state = environment.get("AGENT_STATE") or DEFAULT_STATE
    for position, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument == "--state" and position + 1 < len(arguments):
            state = arguments[position + 1] or state
        elif argument.startswith("--state="):
            state = argument[len("--state=") :] or state
    return os.path.abspath(state)


def cache_folder(environment: "dict[str, str]") -> str:
    """Return where a user other than root keeps the unpacked code (XDG Base Directory Specification; a
    relative XDG_CACHE_HOME is ignored, as it demands)."""
    cache = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        home = environment.get("HOME", "")
        if not os.path.isabs(home):
            import pwd

            try:
                home = pwd.getpwuid(os.geteuid()).pw_dir
            except KeyError:
                raise Unfit(
                    "there is no home folder to unpack this file's code into: set XDG_CACHE_HOME to a folder of yours."
                ) from None
        cache = os.path.join(home, ".cache")
    return os.path.join(cache, "mesh-agent")


def own_folder(path: str, mode: int) -> None:
    """Make sure that `path` is a folder which only this user can write; made with `mode` where it is missing.

    Unfit when it is anything else, since whoever can write it chooses the code that runs.
    """
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, mode)
    except FileExistsError:
        pass
    status = os.lstat(path)
    if status.st_mode & 0o170000 != 0o040000:
        raise Unfit("{} is not a folder: remove it, or choose another place.".format(path))
    if status.st_uid != os.geteuid():
        raise Unfit(
            "{} belongs to another user (uid {}), who could change the code that runs from it: remove it, or "
            "choose another place.".format(path, status.st_uid)
        )
    if status.st_mode & 0o022:
        raise Unfit(
            "{0} can be written by other users (mode {1:04o}), who could change the code that runs from it: "
            "look through it and `chmod go-w {0}`, or choose another place.".format(path, status.st_mode & 0o7777)
        )


def runtime_folder(arguments: "list[str]", environment: "dict[str, str]") -> str:
    """Make and return the folder that holds unpacked code, 0700: STATE/runtime for root, else one in the
    cache."""
    if os.geteuid() != 0:
        folder = cache_folder(environment)
        os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
        own_folder(folder, 0o700)
        return folder
    # The state folder itself may be reached through a link; what lies in it may not.
    state = os.path.realpath(state_folder(arguments, environment))
    os.makedirs(os.path.dirname(state), 0o755, exist_ok=True)
    own_folder(state, 0o711)
    folder = os.path.join(state, "runtime")
    own_folder(folder, 0o700)
    return folder


def is_complete(folder: str) -> bool:
    """Tell whether every file that was unpacked into `folder` is still there in its full size."""
    try:
        with open(os.path.join(folder, COMPLETE), encoding="utf-8") as stream:
            lines = stream.read().split("\n")
        if len(lines) < 2 or lines[-1] or lines[-2] != "end {}".format(len(lines) - 2):
            return False
        for line in lines[:-2]:
            size, name = line.split(" ", 1)
            if os.stat(folder + "/" + name).st_size != int(size):
                return False
    except (OSError, ValueError):
        return False
    return True


def unpack(file: str, folder: str) -> None:
    """Unpack the code of `file` into `folder`, which appears whole or not at all.

    Called with the runtime folder's lock held. Raises OSError when it can't be written there and ValueError
    when the archive is damaged.
    """
    import py_compile
    import shutil
    import zipfile
    import zlib

    runtime = os.path.dirname(folder)
    for name in os.listdir(runtime):
        # Under the lock nobody else is unpacking: this is what a start that was killed has left.
        if name.endswith(".part"):
            shutil.rmtree(os.path.join(runtime, name))
    part = folder + ".part"
    os.mkdir(part, 0o700)
    folders, files = {part}, []
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = member.filename
                if not name.startswith(CODE + "/") or name.endswith("/") or ".." in name.split("/"):
                    continue
                path = os.path.join(part, name)
                parent = os.path.dirname(path)
                os.makedirs(parent, 0o700, exist_ok=True)
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


def flush(path: str) -> None:
    """Return once what was written to the file or folder `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def settle(file: str, build: str, runtime: str) -> str:
    """Return the folder under `runtime` that holds the code of `file`, unpacking it where that is still to be
    done.

    Compiled code is one Python's own, so each kind of Python has a folder. Many first starts at once are
    safe: one unpacks, the others wait for it.
    """
    folder = os.path.join(runtime, "{}-{}".format(build, sys.implementation.cache_tag))
    if os.path.lexists(folder):
        own_folder(folder, 0o700)
        if is_complete(folder):
            return folder
    import fcntl

    lock = os.open(os.path.join(runtime, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(folder):
            unpack(file, folder)
    finally:
        os.close(lock)
    return folder


def prepare(file: str, loader: "object", arguments: "list[str]") -> str:
    """Return the folder of this file's code, ready to be imported; Unfit says why that can't be."""
    check_modules(NEEDED, sys.executable)
    import json

    try:
        record = loader.get_data("build.json")  # type: ignore[attr-defined]
        build = json.loads(record.decode("utf-8"))["id"]
    except (ImportError, OSError, KeyError, ValueError) as error:
        raise Unfit("{} is damaged ({}): copy it here again, whole.".format(file, error)) from error
    try:
        return settle(file, build, runtime_folder(arguments, dict(os.environ)))
    except ValueError as error:
        raise Unfit("{} is damaged ({}): copy it here again, whole.".format(file, error)) from error
    except OSError as error:
        raise Unfit(
            "this file's code can't be unpacked: {}. Put that right, or choose another place with {}.".format(
                "{} ({})".format(error.strerror, error.filename) if error.filename else error,
                "--state or AGENT_STATE" if os.geteuid() == 0 else "XDG_CACHE_HOME",
            )
        ) from error


def start() -> int:
    """Run the command that the arguments name; returns its exit code."""
    global AGENT_FILE
    AGENT_FILE = os.path.abspath(__loader__.archive)  # type: ignore[name-defined]
    try:
        check_python(sys.version_info[:3], sys.executable)
        if sys.executable and not (sys.flags.isolated and sys.flags.no_site):
            os.execv(sys.executable, [sys.executable, "-I", "-S", AGENT_FILE] + sys.argv[1:])
        code = prepare(AGENT_FILE, __loader__, sys.argv[1:])  # type: ignore[name-defined]
    except Unfit as error:
        sys.stderr.write("agent: {}\n".format(error))
        return 1
    except KeyboardInterrupt:
        return 130
    for name in list(os.environ):
        if name.startswith(("PYTHON", "SHIV_")):
            del os.environ[name]
    # Neither the archive itself nor a folder that depends on where the command was given.
    library = [entry for entry in sys.path if os.path.isabs(entry) and os.path.abspath(entry) != AGENT_FILE]
    sys.path[:] = [os.path.join(code, CODE)] + library
    # Every module that was unpacked was compiled with it; anything written later would not be on the list of
    # sizes.
    sys.dont_write_bytecode = True
    from agent.cli import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(start())
