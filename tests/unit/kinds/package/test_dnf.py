from __future__ import annotations

import pytest

from agent.errors import Unavailable
from agent.host.commands import Finished
from agent.kinds.package import dnf
from agent.kinds.package.dnf import Dnf
from agent.kinds.package.installer import Failure, Status, Trouble
from tests.unit.kinds.package.answers import Answers
from tests.unit.kinds.package.rpms import APP, BASE, BROKEN, FAILING, Root

UNREACHABLE_4 = """\
Errors during downloading metadata for repository 'test':
  - Curl error (6): Couldn't resolve host name for http://rpm.example.org/repodata/repomd.xml [Could not resolve host]
Error: Failed to download metadata for repo 'test': Cannot download repomd.xml: All mirrors were tried
Ignoring repositories: test
Error: Unable to find a match: app
"""
NO_REPOSITORY_4 = 'Error: There are no enabled repositories in "/etc/yum.repos.d", "/etc/distro.repos.d".\n'
UNKNOWN_5 = """\
Updating and loading repositories:
Repositories loaded.
Failed to resolve the transaction:
No match for argument: app
You can try to add to command line:
  --skip-unavailable to skip unavailable packages
"""
UNREACHABLE_5 = """\
Updating and loading repositories:
 test                                   ???% |   0.0   B/s |  -1.0   B |  ?
>>> Curl error (7): Could not connect to server for http://127.0.0.1:1/x/repodata/repomd.xml [Failed to connect]
>>> Usable URL not found
Repositories loaded.
Failed to resolve the transaction:
No match for argument: app
You can try to add to command line:
  --skip-unavailable to skip unavailable packages
"""
BROKEN_5 = """\
Failed to resolve the transaction:
Problem: conflicting requests
  - nothing provides no-such-thing needed by app-1.0-1.noarch from test
You can try to add to command line:
  --skip-broken to skip uninstallable packages
"""
SCRIPT_5 = """\
Running transaction
[2/3] Prepare transaction               100% | 200.0   B/s |   1.0   B |  00m00s
>>> Running %pre scriptlet: app-0:1.0-1.noarch
>>> Error in %pre scriptlet: app-0:1.0-1.noarch
>>> [RPM] lua script failed: [string "%prein(app-1.0-1.noarch)"]:1: no
Transaction failed: Rpm transaction failed.
"""
LOCKED_5 = "Transaction failed: Failed to obtain rpm transaction lock. Another transaction is in progress.\n"


def of(root: Root) -> Dnf:
    return Dnf(root.run, root.database)


def test_a_package_and_what_it_requires_are_installed(root: Root) -> None:
    assert of(root).status(APP) is Status.ABSENT
    of(root).install(APP)
    assert of(root).status(APP) is Status.INSTALLED
    assert of(root).status(BASE) is Status.INSTALLED


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no-such-package", "dnf knows no package no-such-package that could be installed; see `dnf repoquery no-such"),
        (BROKEN, f"failed with exit status 1: - nothing provides no-such-thing needed by {BROKEN}-1.0-1.noarch"),
        (FAILING, "failed with exit status 1: .*this one never installs"),
    ],
)
def test_why_a_package_is_not_installed(root: Root, name: str, why: str) -> None:
    with pytest.raises(Unavailable, match=why):
        of(root).install(name)
    assert of(root).status(name) is Status.ABSENT


def test_a_repository_that_cannot_be_reached_is_told_from_a_package_that_nobody_has(root: Root) -> None:
    root.use("http://127.0.0.1:1/x")
    with pytest.raises(Unavailable, match=r"because dnf can't reach where packages come from: .*Curl error"):
        of(root).install(APP)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (
            UNREACHABLE_4,
            Failure(
                Trouble.UNREACHABLE,
                "- Curl error (6): Couldn't resolve host name for http://rpm.example.org/repodata/repomd.xml "
                "[Could not resolve host]",
            ),
        ),
        (NO_REPOSITORY_4, Failure(Trouble.UNREACHABLE, NO_REPOSITORY_4.strip())),
        (UNKNOWN_5, Failure(Trouble.UNKNOWN, "No match for argument: app")),
        (
            UNREACHABLE_5,
            Failure(
                Trouble.UNREACHABLE,
                ">>> Curl error (7): Could not connect to server for http://127.0.0.1:1/x/repodata/repomd.xml "
                "[Failed to connect]",
            ),
        ),
        (
            BROKEN_5,
            Failure(Trouble.OTHER, "- nothing provides no-such-thing needed by app-1.0-1.noarch from test"),
        ),
        (SCRIPT_5, Failure(Trouble.OTHER, '>>> [RPM] lua script failed: [string "%prein(app-1.0-1.noarch)"]:1: no')),
        (LOCKED_5, Failure(Trouble.LOCKED, LOCKED_5.strip())),
        # microdnf (libdnf 0.73), from its source
        ("error: No package matches 'app'\n", Failure(Trouble.UNKNOWN, "error: No package matches 'app'")),
    ],
)
def test_what_dnf_4_14_and_dnf_5_4_say(text: str, failure: Failure) -> None:
    assert dnf.read(Finished((), 1, b"", text.encode())) == failure


def test_a_lock_that_was_waited_for_too_long() -> None:
    finished = Finished((), 200, b"Waiting for process with pid 4711 to finish.\n", b"")
    assert dnf.read(finished) == Failure(Trouble.LOCKED, "Waiting for process with pid 4711 to finish.")


def test_repositories_are_refreshed_once_where_they_do_not_know_the_package() -> None:
    run = Answers(
        {
            "dnf5 -y --setopt=install_weak_deps=False install": [(1, UNKNOWN_5)],
            "dnf5 -y --setopt=install_weak_deps=False --refresh": [(0, "")],
            "rpm -q": [(0, "app\t0\t1.0\t1\n")],
        }
    )
    Dnf(run, program="dnf5").install("app")
    assert [words.split()[-1] for words in run.asked] == ["install", "--refresh", "-q"]


def test_the_command_by_which_a_person_removes_it() -> None:
    assert Dnf(program="microdnf").removal("app") == "microdnf remove app"
