from __future__ import annotations

import pytest

from agent.errors import Unavailable
from agent.host.commands import CommandFailed, Finished
from agent.kinds.package import apt
from agent.kinds.package.apt import Apt
from agent.kinds.package.installer import Status, Trouble
from tests.unit.kinds.package.answers import Answers

POLICY = """hello:
  Installed: (none)
  Candidate: 2.10-3
  Version table:
     2.10-3 500
        500 http://src.example.org bookworm/main amd64 Packages
"""


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", Status.ABSENT),
        ("not-installed\n", Status.ABSENT),
        ("config-files\n", Status.ABSENT),
        ("installed\n", Status.INSTALLED),
        ("not-installed\ninstalled\n", Status.INSTALLED),
        ("triggers-awaited\n", Status.INSTALLED),
        ("unpacked\n", Status.INTERRUPTED),
        ("half-configured\n", Status.INTERRUPTED),
        ("half-installed\n", Status.INTERRUPTED),
        ("triggers-pending\n", Status.INTERRUPTED),
    ],
)
def test_what_dpkg_query_answers(text: str, status: Status) -> None:
    assert apt.parse_status(text) is status


@pytest.mark.parametrize(
    ("text", "candidate"),
    [(POLICY, "2.10-3"), (POLICY.replace("2.10-3", "(none)"), None), ("", None), ("N: Unable to locate\n", None)],
)
def test_what_apt_would_install(text: str, candidate: str | None) -> None:
    assert apt.parse_candidate(text) == candidate


@pytest.mark.parametrize(
    ("text", "outdated"),
    [
        ("E: Failed to fetch http://src.example.org/x.deb  404  Not Found [IP: ::1 80]", True),
        ("E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?", True),
        ("E: Failed to fetch x.deb  Hash Sum mismatch", True),
        ("E: Sub-process /usr/bin/dpkg returned an error code (1)", False),
        ("Unpacking web (1.4041) ...", False),
    ],
)
def test_when_lists_are_outdated(text: str, outdated: bool) -> None:
    failure = apt.read(Finished((), 100, b"", text.encode()))
    assert (failure.trouble is Trouble.OUTDATED) is outdated


@pytest.mark.parametrize(
    ("stdout", "stderr", "line"),
    [
        (
            "Setting up web (1) ...\n",
            "dpkg: error processing package web (--configure):\n its script failed with status 1\nE: dpkg failed\n",
            "dpkg: error processing package web (--configure): its script failed with status 1",
        ),
        ("", "W: a warning\nE: Unable to locate package web\nE: and more\n", "E: Unable to locate package web"),
        ("one\ntwo\n\n", "", "two"),
        ("", "", "it said nothing."),
    ],
)
def test_the_line_that_says_why(stdout: str, stderr: str, line: str) -> None:
    assert apt.read(Finished((), 100, stdout.encode(), stderr.encode())).line == line


WHOLE = {"dpkg --audit": [(0, "")]}
ABSENT, INSTALLED = (1, "no packages found matching hello"), (0, "installed\n")


def test_a_known_package_is_installed_without_fetching_lists() -> None:
    answers = {"apt-cache": [(0, POLICY)], "apt-get install": [(0, "")], "dpkg-query": [ABSENT, INSTALLED]}
    run = Answers({**WHOLE, **answers})
    Apt(run).install("hello")
    assert run.asked == ["dpkg --audit", "dpkg-query", "apt-cache", "apt-get install", "dpkg-query"]


def test_lists_are_fetched_where_they_do_not_know_the_package() -> None:
    run = Answers(
        {
            **WHOLE,
            "apt-cache": [(0, ""), (0, POLICY)],
            "apt-get update": [(0, "")],
            "apt-get install": [(0, "")],
            "dpkg-query": [ABSENT, INSTALLED],
        }
    )
    Apt(run).install("hello")
    assert run.asked[2:] == ["apt-cache", "apt-get update", "apt-cache", "apt-get install", "dpkg-query"]


def test_a_package_that_nobody_knows_is_a_failure_in_words() -> None:
    run = Answers({**WHOLE, "apt-cache": [(0, "")], "apt-get update": [(0, "")], "dpkg-query": [ABSENT]})
    with pytest.raises(Unavailable, match="apt knows no package hello that could be installed; see `apt-cache"):
        Apt(run).install("hello")


# apt 2.6.1 ends with 0 all the same.
UNREACHABLE = """\
Err:1 http://src.example.org/distro bookworm InRelease
  Temporary failure resolving 'src.example.org'
Reading package lists...
W: Failed to fetch http://src.example.org/distro/dists/bookworm/InRelease  Temporary failure resolving 'src.example.org'
W: Some index files failed to download. They have been ignored, or old ones used instead.
"""


def test_sources_that_cannot_be_reached_are_told_from_a_package_that_nobody_has() -> None:
    run = Answers({**WHOLE, "apt-cache": [(0, "")], "apt-get update": [(0, UNREACHABLE)], "dpkg-query": [ABSENT]})
    with pytest.raises(Unavailable) as failure:
        Apt(run).install("hello")
    assert str(failure.value) == (
        "The package hello can't be installed, because apt can't reach where packages come from: W: Failed to fetch "
        "http://src.example.org/distro/dists/bookworm/InRelease  Temporary failure resolving 'src.example.org'; see "
        "the network and the sources in /etc/apt, or carry the package's files."
    )


def test_outdated_lists_are_fetched_once() -> None:
    gone = (100, "E: Failed to fetch http://src.example.org/hello.deb  404  Not Found\n")
    answers = {"apt-cache": [(0, POLICY)], "apt-get update": [(0, "")], "apt-get install": [gone]}
    run = Answers({**WHOLE, **answers, "dpkg-query": [ABSENT]})
    with pytest.raises(CommandFailed, match="404"):
        Apt(run).install("hello")
    assert run.asked[2:] == ["apt-cache", "apt-get install", "apt-get update", "apt-get install"]


def test_another_failure_is_not_tried_again() -> None:
    broken = (100, "E: hello : Depends: world but it is not installable\n")
    run = Answers({**WHOLE, "apt-cache": [(0, POLICY)], "apt-get install": [broken], "dpkg-query": [ABSENT]})
    with pytest.raises(CommandFailed, match="failed with exit status 100: E: hello : Depends: world"):
        Apt(run).install("hello")
    assert run.asked[2:] == ["apt-cache", "apt-get install"]


def test_an_installation_that_installs_nothing_is_a_failure() -> None:
    run = Answers({**WHOLE, "apt-cache": [(0, POLICY)], "apt-get install": [(0, "")], "dpkg-query": [ABSENT]})
    with pytest.raises(Unavailable, match="hello is not installed; see `dpkg -s hello`"):
        Apt(run).install("hello")


def test_a_database_that_cannot_be_read_is_no_absent_package() -> None:
    run = Answers({"dpkg-query": [(2, "dpkg-query: error: failed to open package info file")]})
    with pytest.raises(Unavailable, match="failed to open package info file"):
        Apt(run).status("hello")
