"""Who a program runs as and who owns a file: the machine's accounts, by name."""

from __future__ import annotations

import functools
import grp
import os
import pwd
from dataclasses import dataclass

from agent.errors import Refused

# One more is (uid_t) -1, which means "leave it" to the kernel.
_LARGEST_ID = 2**32 - 2


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine; `groups` are all of its group ids, the primary one (`gid`) included."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def account(user: str) -> Account:
    """The account named `user`, or Refused when the machine has none of that name."""
    return _account(_entry(user))


def current() -> Account:
    """The account this program runs as; a user id that has no name gets its number for one."""
    uid = os.geteuid()
    try:
        return _account(pwd.getpwuid(uid))
    except KeyError:
        return Account(str(uid), uid, os.getegid(), tuple(os.getgroups()), "/")


def owner_ids(owner: str) -> tuple[int, int]:
    """(uid, gid) of "USER" (its primary group) or "USER:GROUP"; Refused when the machine lacks one.

    A number is an id, whether or not the machine has a name for it: what runs in a container has ids of its own. Alone
    it is the group's too.
    """
    return _owner_ids(owner, _version())


def require_right(owner: str, uid: int) -> None:
    """Refused when this program may not make things that belong to `owner`, whose user id is `uid`."""
    if os.geteuid() not in (0, uid):
        raise Refused(f"Only root can make what belongs to {owner}; run the agent as root.")


@functools.lru_cache(maxsize=64)
def _owner_ids(owner: str, version: tuple[int, ...]) -> tuple[int, int]:
    """Asked for every file at every look, so kept while the machine's own lists of accounts stay as they are."""
    user, colon, group = owner.partition(":")
    entry = None if user.isdecimal() else _entry(user)
    uid = entry.pw_uid if entry else _number(user)
    if not colon:
        return uid, entry.pw_gid if entry else uid
    if group.isdecimal():
        return uid, _number(group)
    try:
        return uid, grp.getgrnam(group).gr_gid
    except (KeyError, ValueError) as error:
        raise Refused(f"This machine has no group {group!r}; make it, or name another.") from error


def _number(id: str) -> int:
    if int(id) > _LARGEST_ID:
        raise Refused(f"There is no user or group {id}; their numbers end at {_LARGEST_ID}.")
    return int(id)


def _version() -> tuple[int, ...]:
    try:
        return os.stat("/etc/passwd").st_mtime_ns, os.stat("/etc/group").st_mtime_ns
    except FileNotFoundError:
        return ()


def _entry(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except (KeyError, ValueError) as error:
        raise Refused(f"This machine has no user {user!r}; make it, or name another.") from error


def _account(entry: pwd.struct_passwd) -> Account:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir or "/")
