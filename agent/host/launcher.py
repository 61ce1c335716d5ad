"""Becomes a detached program: the last steps between the one who starts it and its exec.

Run by path with a Python of its own, because forking a process that has threads is not safe; it imports
nothing of this project. Arguments: the channel's descriptor, uid, gid, groups (comma-separated), directory,
argv. It says its pid on the channel, waits for one byte, and execs. The channel's end means: done;
text says why not.
"""

import os
import signal
import sys

GO = b"!"


def main() -> None:
    """Detaches, waits for the word, and becomes the program."""
    channel, uid, gid = (int(argument) for argument in sys.argv[1:4])
    groups = [int(group) for group in sys.argv[4].split(",") if group]
    directory, *argv = sys.argv[5:]
    os.set_inheritable(channel, False)
    if os.fork() > 0:
        os._exit(0)
    os.setsid()
    os.write(channel, b"%d\n" % os.getpid())
    if os.read(channel, 1) != GO:
        os._exit(0)
    try:
        _forget_signals()
        # From here on nothing may be imported: the user may not be allowed to read this Python's library.
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
        os.chdir(directory)
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(channel, f"{error.filename or argv[0]}: {error.strerror}".encode())
    os._exit(127)


def _forget_signals() -> None:
    # Python ignores SIGPIPE, a caller under nohup SIGHUP; what is ignored stays so across an exec.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
