from __future__ import annotations

import os

import pytest

from agent.errors import Unavailable
from agent.host.commands import Finished
from agent.kinds.package import zypper
from agent.kinds.package.installer import Failure, Status, Trouble
from agent.kinds.package.zypper import Zypper
from tests.unit.kinds.package.answers import Answers
from tests.unit.kinds.package.rpms import APP, BASE, BROKEN, FAILING, Root

# zypper 1.14.42
UNREACHABLE = """\
Repository 'test' is invalid.
[test|http://127.0.0.1:1/x] Valid metadata not found at specified URL
History:
 - Download (curl) error for 'http://127.0.0.1:1/x/content':
Error code: Connection failed
Error message: Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server
Some of the repositories have not been refreshed because of an error.
No provider of 'app' found.
"""
FAILED = """\
Installation of app-1.0-1.noarch failed:
Error: Subprocess failed. Error: RPM failed: error: lua script failed: [string "%prein(app-1.0-1.noarch)"]:1: no
error: app-1.0-1.noarch: install failed

Problem occurred during or after installation or removal of packages:
Installation has been aborted as directed.
"""
LOCKED = """\
System management is locked by the application with pid 4711 (/usr/bin/zypper).
Close this application before trying again.
"""
UNKNOWN = "No provider of 'app' found.\n"


def of(root: Root, patience: float = 60) -> Zypper:
    return Zypper(root.run, root.database, patience)


def test_a_package_and_what_it_requires_are_installed(root: Root) -> None:
    assert of(root).status(APP) is Status.ABSENT
    of(root).install(APP)
    assert of(root).status(APP) is Status.INSTALLED
    assert of(root).status(BASE) is Status.INSTALLED


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no-such-package", "zypper knows no package no-such-package that could be installed; see `zypper search no-"),
        (BROKEN, f"exit status 4: Problem: nothing provides no-such-thing needed by {BROKEN}-1.0-1.noarch"),
        (FAILING, "exit status 8: error: .*this one never installs"),
    ],
)
def test_why_a_package_is_not_installed(root: Root, name: str, why: str) -> None:
    with pytest.raises(Unavailable, match=why):
        of(root).install(name)
    assert of(root).status(name) is Status.ABSENT


def test_a_repository_that_cannot_be_reached_is_told_from_a_package_that_nobody_has(root: Root) -> None:
    root.use("http://127.0.0.1:1/x")
    with pytest.raises(Unavailable, match="because zypper can't reach where packages come from: Error message: "):
        of(root).install(APP)


def test_who_holds_the_lock_is_named(root: Root) -> None:
    (root.root / "run").mkdir()
    (root.root / "run/zypp.pid").write_text(str(os.getppid()))
    with pytest.raises(Unavailable, match=rf"locked by the application with pid {os.getppid()} .*; wait for it to end"):
        of(root, patience=1).install(APP)


@pytest.mark.parametrize(
    ("code", "text", "failure"),
    [
        (
            104,
            UNREACHABLE,
            Failure(
                Trouble.UNREACHABLE,
                "Error message: Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server",
            ),
        ),
        (104, UNKNOWN, Failure(Trouble.UNKNOWN, UNKNOWN.strip())),
        (8, FAILED, Failure(Trouble.OTHER, "error: app-1.0-1.noarch: install failed")),
        (7, LOCKED, Failure(Trouble.LOCKED, LOCKED.splitlines()[0])),
    ],
)
def test_what_zypper_says(code: int, text: str, failure: Failure) -> None:
    assert zypper.read(Finished((), code, b"", text.encode())) == failure


@pytest.mark.parametrize("code", [0, 100, 101, 102, 103, 106, 107])
def test_an_exit_status_that_says_more_than_success_is_one(code: int) -> None:
    # 106: another repository was left out; 107: the script of some package failed.
    run = Answers({"zypper": [(code, "")], "rpm -q": [(0, "app\t0\t1.0\t1\n")]})
    Zypper(run).install("app")
    missing = Answers({"zypper": [(code, "")], "rpm -q": [(0, "package app is not installed\n")]})
    with pytest.raises(Unavailable, match="zypper is done, but app is not installed"):
        Zypper(missing).install("app")


def test_repositories_are_refreshed_once_where_they_do_not_know_the_package() -> None:
    run = Answers(
        {
            "zypper --non-interactive install": [(104, UNKNOWN), (0, "")],
            "zypper --non-interactive refresh": [(0, "")],
            "rpm -q": [(0, "app\t0\t1.0\t1\n")],
        }
    )
    Zypper(run).install("app")
    assert [words.split()[-1] for words in run.asked] == ["install", "refresh", "install", "-q"]
