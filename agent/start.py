"""What the one file runs first: checks this Python, unpacks the code once, hands over to `agent.cli`.

Assembled into the file as its `__main__.py`. It imports nothing of the agent and only what every Python has,
and its syntax is that of Python 3.6, so that a Python that is too old gets a sentence instead of a traceback.

- Nothing in the environment and nothing that another user can write decides which code runs: Python is isolated
  (`-I -S`), and the unpacked code lies in a folder of this user's alone.
- What is unpacked (by `agent/unpacking.py`) is never changed. Each start compares every file's size with the list that
  was written last, so that what a power failure cut short is unpacked again.
- A running agent holds a lock on the code it runs from, so that a newer one doesn't remove it.
- The lines of shell before the archive find a Python. They ask each one that they find (`-X agent=probe`) whether it
  is fit, and this module writes down the one that was.
"""

import os
import sys

TYPE_CHECKING = False  # the type checker knows better; no start is to wait for `typing`
if TYPE_CHECKING:
    from collections.abc import Callable

OLDEST = (3, 10)
# What the wheels of the platform tag manylinux2014 are built for (PEP 599).
OLDEST_GLIBC = (2, 17)
NEEDED = ("_hashlib", "_sqlite3", "_ssl", "ctypes", "fcntl", "json", "shutil", "sqlite3", "ssl", "zipfile", "zlib")
DEFAULT_STATE = "/var/lib/mesh-agent"
# What may lie in the state folder before a ledger says whose it is, as `agent.node.folder` has it.
LEDGER = "ledger.db"
OURS = frozenset(("agent", "blobs", "control", "identity", "log", "lost+found", "run", "runtime", "secrets"))
COMPLETE = "complete"
CODE = "site-packages"
REMEMBERED = "python"
ATTEMPTS = 5

# Where this process's own file lies and what its build wrote down, once they are known; `agent.build` reads them from
# the main module.
AGENT_FILE = ""
BUILD_RECORD = b""
# The lock on the code that this process runs from; it ends with the process.
IN_USE = -1


class Unfit(Exception):
    """This machine or this file can't run the agent; the message says why and what to do."""


class UnfitPython(Unfit):
    """Another Python may be able to."""


class Lacking(UnfitPython):
    """This Python is too old or incomplete. What to do depends on the distribution; the lines of shell say it."""


def check_python(version: "tuple[int, int, int]", executable: str) -> None:
    """Raise Lacking for a Python that is too old."""
    if version < OLDEST:
        raise Lacking(
            "this needs Python {}.{} or newer, and {} is Python {}.{}.{}".format(
                *OLDEST, executable or "the one that runs this", *version
            )
        )


def check_modules(names: "tuple[str, ...]", executable: str) -> None:
    """Raise Lacking when this Python is without a part of its standard library, as Debian's python3-minimal is."""
    from importlib.machinery import PathFinder

    missing = [name for name in names if name not in sys.builtin_module_names and not PathFinder.find_spec(name)]
    if missing:
        raise Lacking(
            "{} lacks a part of Python's standard library ({})".format(executable or "this Python", ", ".join(missing))
        )


def libc() -> str:
    """Return what this Python's native code is linked to: `glibc` or `musl`. Unfit for a glibc that is too old."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        name = ""
    if not name.startswith("glibc "):
        return "musl"
    if tuple(int(part) for part in name.split(" ")[1].split(".")[:2] if part.isdigit()) < OLDEST_GLIBC:
        raise Unfit("this needs glibc 2.17 or newer, and this machine has {}: use a newer system.".format(name))
    return "glibc"


def check_native(natives: "list[str]", executable: str) -> str:
    """Return the platform that this Python's native code is for, as in `x86_64-glibc`.

    `natives` are the combinations that the file carries, `PLATFORM/TAG`. Unfit when none is this Python's.
    """
    machine = os.uname().machine
    machines = sorted({native.split("-")[0] for native in natives})
    if machine not in machines:
        raise Unfit(
            "this machine is {}, and this file carries native code for {} alone: run it on one of these.".format(
                machine, " and ".join(machines)
            )
        )
    if sys.maxsize < 2**32:
        raise UnfitPython(
            "{} is a 32-bit program, and this file carries native code for 64-bit ones alone: install a 64-bit "
            "Python, or use a 64-bit system.".format(executable or "this Python")
        )
    platform = "{}-{}".format(machine, libc())
    flags = getattr(sys, "abiflags", "")
    if "{}/{}{}".format(platform, python_tag(), flags) not in natives:
        minors = sorted(int(native.split("/cp3")[1]) for native in natives)
        raise UnfitPython(
            "{} is {} {}.{}{}, and this file carries native code for CPython 3.{} to 3.{} alone: install one of "
            "these, or build this file anew.".format(
                executable or "this Python",
                sys.implementation.name,
                *sys.version_info[:2],
                flags,
                minors[0],
                minors[-1],
            )
        )
    return platform


def python_tag() -> str:
    """Return this Python as wheels name it (PEP 425), as in `cp312`."""
    name = sys.implementation.name
    return "{}{}{}".format("cp" if name == "cpython" else name, *sys.version_info[:2])


def state_folder(arguments: "list[str]", environment: "dict[str, str]") -> str:
    """Return the state folder's absolute path, as the command line will read it: the last `--state` before a
    `--`, else AGENT_STATE, else the default. Unfit when a relative one leads nowhere."""
    state = environment.get("AGENT_STATE") or DEFAULT_STATE
    for position, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument == "--state" and position + 1 < len(arguments):
            state = arguments[position + 1] or state
        elif argument.startswith("--state="):
            state = argument[len("--state=") :] or state
    try:
        return os.path.abspath(state)
    except FileNotFoundError:
        raise Unfit(
            "the folder that this was started in is gone, so {} leads nowhere: give an absolute path.".format(state)
        ) from None


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


def refuse_foreign(state: str) -> None:
    """Unfit when the folder holds what no agent put there: nothing is to be made in it then."""
    try:
        names = set(os.listdir(state))
    except FileNotFoundError:
        return
    if LEDGER not in names and names - OURS:
        raise Unfit(
            '{} holds "{}", so it is not the agent\'s own folder; choose an empty or a new one with --state'.format(
                state, min(names - OURS)
            )
        )


def another_place() -> str:
    """Return what chooses the place that the code is unpacked into."""
    return "--state or AGENT_STATE" if os.geteuid() == 0 else "XDG_CACHE_HOME"


def runtime_folder(arguments: "list[str]", environment: "dict[str, str]") -> str:
    """Make and return the folder that holds unpacked code, 0700: STATE/runtime for root, else one in the
    cache."""
    if os.geteuid() != 0:
        folder = cache_folder(environment)
        os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
    else:
        # The state folder itself may be reached through a link; what lies in it may not.
        state = os.path.realpath(state_folder(arguments, environment))
        refuse_foreign(state)
        os.makedirs(os.path.dirname(state), 0o755, exist_ok=True)
        own_folder(state, 0o711)
        folder = os.path.join(state, "runtime")
    own_folder(folder, 0o700)
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 8):
        raise Unfit(
            "{} lies on a file system that no program may run from (noexec), so this file's native code can't be "
            "loaded from there: choose another place with {}.".format(folder, another_place())
        )
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


def hold(folder: str) -> bool:
    """Take this process's lock on the code in `folder`, if that is whole; told whether it is.

    The lock is on the list of sizes, whose time of change says when the code was last used.
    """
    global IN_USE
    import fcntl

    path = os.path.join(folder, COMPLETE)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        pass  # a file system without locks: nothing is removed there
    try:
        mine, there = os.fstat(descriptor), os.stat(path)
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino) and is_complete(folder):
            try:
                os.utime(descriptor)
            except OSError:
                pass  # a file system that can't be written, as it may be
            IN_USE, descriptor = descriptor, IN_USE
            return True
    except OSError:
        pass
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return False


def settle(build: str, runtime: str, platform: str, unpack: "Callable[[str], None]") -> str:
    """Return the folder under `runtime` that holds the code of `build`, in use by this process from now on; `unpack`
    makes it where that is still to be done.

    Compiled code is one Python's own and native code one platform's, so each of them has a folder. Many first starts
    at once are safe: one unpacks, the others wait for it.
    """
    import fcntl

    folder = os.path.join(runtime, "{}-{}-{}".format(build, sys.implementation.cache_tag, platform))
    for _ in range(ATTEMPTS):
        if os.path.lexists(folder):
            own_folder(folder, 0o700)
            if hold(folder):
                return folder
        lock = os.open(os.path.join(runtime, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_complete(folder):
                unpack(folder)
        finally:
            os.close(lock)
    raise Unfit("{} is damaged as often as it is written: look at the disk, or choose another place.".format(folder))


def remember(runtime: str, executable: str) -> None:
    """Write down the Python that works here, for the lines of shell; where that can't be, they look for one again."""
    path = os.path.join(runtime, REMEMBERED)
    part = "{}.{}.part".format(path, os.getpid())
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, os.fsencode(executable) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(part, path)
    except OSError:
        pass


def forget(arguments: "list[str]", environment: "dict[str, str]") -> bool:
    """Remove what `remember` wrote; told whether there was something."""
    try:
        if os.geteuid() == 0:
            folder = os.path.join(state_folder(arguments, environment), "runtime")
        else:
            folder = cache_folder(environment)
        os.unlink(os.path.join(folder, REMEMBERED))
    except (OSError, Unfit):
        return False
    return True


def read_record(loader: "object") -> "tuple[str, list[str]]":
    """Return the build's id and the native code that the file carries; Unfit when they can't be read."""
    global BUILD_RECORD
    import json

    try:
        BUILD_RECORD = loader.get_data("build.json")  # type: ignore[attr-defined]
        record = json.loads(BUILD_RECORD.decode("utf-8"))
        return str(record["id"]), [str(native) for native in record["natives"]]
    except (ImportError, OSError, KeyError, TypeError, ValueError) as error:
        raise damaged(error) from error


def damaged(error: Exception) -> Unfit:
    """Return what is said of a file that was changed or cut short."""
    return Unfit("{} is damaged ({}): copy it here again, whole.".format(AGENT_FILE, error))


def check(loader: "object") -> "tuple[str, str]":
    """Return the build's id and this Python's platform; Unfit says why this Python can't run the file."""
    check_python(sys.version_info[:3], sys.executable)
    check_modules(NEEDED, sys.executable)
    build, natives = read_record(loader)
    return build, check_native(natives, sys.executable)


def prepare(loader: "object", arguments: "list[str]", *, searched: bool) -> str:
    """Return the folder of this file's code, ready to be imported; Unfit says why that can't be.

    `searched`: this Python was looked for, and is to be remembered.
    """
    build, platform = check(loader)

    def unpack(folder: str) -> None:
        import unpacking  # type: ignore[import-not-found] # beside this module in the file

        unpacking.unpack(AGENT_FILE, folder, platform, python_tag())
        unpacking.remove_older(os.path.dirname(folder), build)

    runtime = ""
    try:
        runtime = runtime_folder(arguments, dict(os.environ))
        folder = settle(build, runtime, platform, unpack)
        if searched:
            remember(runtime, sys.executable)
        return folder
    except ValueError as error:
        raise damaged(error) from error
    except OSError as error:
        raise Unfit(
            "this file's code can't be unpacked into {}: {}. Put that right, or choose another place with {}.".format(
                runtime or error.filename, error.strerror or error, another_place()
            )
        ) from error


def probe(loader: "object") -> str:
    """Return what the lines of shell are told of this Python: `fit PATH`, `lacks WHAT` or `unfit SENTENCE`."""
    try:
        check(loader)
    except Lacking as error:
        return "lacks {}".format(error)
    except Unfit as error:
        return "unfit {}".format(error)
    return "fit {}".format(os.path.realpath(sys.executable))


def library() -> "list[str]":
    """Return where Python's own library lies: `sys.path` without the file itself, and without what the environment or
    an installed package put there."""
    entries = [entry for entry in sys.path if os.path.isabs(entry) and os.path.abspath(entry) != AGENT_FILE]
    if sys.flags.isolated and sys.flags.no_site:
        return entries
    own = os.path.dirname(os.path.abspath(os.__file__))
    return [entry for entry in entries if entry in (own, os.path.join(own, "lib-dynload"))]


def start() -> int:
    """Run the command that the arguments name; returns its exit code."""
    global AGENT_FILE
    loader = __loader__  # type: ignore[name-defined]
    AGENT_FILE = os.path.abspath(loader.archive)
    arguments = sys.argv[1:]
    how = getattr(sys, "_xoptions", {}).get("agent")
    if how == "probe":
        sys.stdout.write("{}\n".format(probe(loader)))
        return 0
    try:
        check_python(sys.version_info[:3], sys.executable)
        if sys.executable and not (sys.flags.isolated and sys.flags.no_site):
            try:
                os.execv(sys.executable, [sys.executable, "-I", "-S", AGENT_FILE] + arguments)
            except OSError:
                pass  # run by an emulator, which alone can run this Python
        code = prepare(loader, arguments, searched=how == "searched")
    except Unfit as error:
        if isinstance(error, UnfitPython) and how == "remembered" and forget(arguments, dict(os.environ)):
            os.execv("/bin/sh", ["/bin/sh", AGENT_FILE] + arguments)
        hint = ": run {} itself, which looks for another Python.".format(AGENT_FILE)
        sys.stderr.write("agent: {}{}\n".format(error, hint if isinstance(error, Lacking) else ""))
        return 1
    except KeyboardInterrupt:
        return 130
    for name in list(os.environ):
        if name.startswith(("PYTHON", "SHIV_")):
            del os.environ[name]
    # Neither the archive itself nor a folder that depends on where the command was given.
    sys.path[:] = [os.path.join(code, CODE)] + library()
    # Every module that was unpacked was compiled with it; anything written later would not be on the list of
    # sizes.
    sys.dont_write_bytecode = True
    try:
        from agent.cli import main
    except KeyboardInterrupt:
        return 130
    return main(arguments)


if __name__ == "__main__":
    sys.exit(start())
