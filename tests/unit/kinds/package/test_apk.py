"""apk by what it says, since Debian has none: the answers are those of apk-tools 2.14.10 and 3.0.6."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.host.commands import Finished
from agent.kinds.package import apk
from agent.kinds.package.apk import Apk, Header
from agent.kinds.package.installer import Failure, Status, Trouble
from tests.unit.kinds.package.answers import Answers

UNKNOWN = """\
ERROR: unable to select packages:
  app (no such package):
    required by: world[app]
"""
UNREACHABLE_2 = (
    "WARNING: updating and opening http://127.0.0.1:1/x: could not connect to server (check repositories file)"
)
UNREACHABLE_3 = "WARNING: updating and opening http://127.0.0.1:1/x/x86_64/APKINDEX.tar.gz: Connection refused"
LOCKED = """\
Waiting for repository lock
ERROR: Unable to lock database: Interrupted system call
ERROR: Failed to open apk database: Interrupted system call
"""
MISSING = """\
ERROR: unable to select packages:
  base (no such package):
    required by: app-1.0-r0[base]
"""
OUTDATED = "ERROR: app-1.0-r0: package mentioned in index not found (try 'apk update')\n1 error; 7 MiB in 15 packages\n"
BROKEN_DATABASE = (
    "ERROR: Unable to read database: No such file or directory\nERROR: Failed to open apk database: No such"
)


def package(folder: Path, name: str, version: str, architecture: str = "noarch") -> Path:
    """A package file as abuild makes them: a signature, the facts and the data, each a gzip stream of its own."""
    facts = f"# by a test\npkgname = {name}\npkgver = {version}\narch = {architecture}\ndepend = base\n"
    parts = [{".SIGN.RSA.test": "none"}, {".PKGINFO": facts}, {"usr/share/app": "data"}]
    path = folder / f"{len(list(folder.iterdir()))}.apk"
    path.write_bytes(b"".join(segment(part, last=part is parts[-1]) for part in parts))
    return path


def segment(members: Mapping[str, str], *, last: bool) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        end = archive.offset
    return gzip.compress(buffer.getvalue() if last else buffer.getvalue()[:end])


@pytest.mark.parametrize(
    ("code", "said", "status"), [(0, "app\n", Status.INSTALLED), (1, "", Status.ABSENT), (0, "other\n", Status.ABSENT)]
)
def test_what_is_installed(code: int, said: str, status: Status) -> None:
    run = Answers({"apk info": [(code, said)]})
    assert Apk(run).status("app") is status
    assert run.lines == ["apk info --installed app"]


def test_a_database_that_cannot_be_read_is_no_absent_package() -> None:
    with pytest.raises(Unavailable, match="Unable to read database: No such file"):
        Apk(Answers({"apk info": [(99, BROKEN_DATABASE)]})).status("app")


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (UNKNOWN, Failure(Trouble.UNKNOWN, "required by: world[app]")),
        (f"{UNREACHABLE_2}\n{UNKNOWN}", Failure(Trouble.UNREACHABLE, UNREACHABLE_2)),
        (f"{UNREACHABLE_3}\n{UNKNOWN}", Failure(Trouble.UNREACHABLE, UNREACHABLE_3)),
        (LOCKED, Failure(Trouble.LOCKED, "ERROR: Unable to lock database: Interrupted system call")),
        (OUTDATED, Failure(Trouble.OUTDATED, OUTDATED.splitlines()[0])),
        (MISSING, Failure(Trouble.OTHER, "base (no such package): required by: app-1.0-r0[base]")),
        (
            "ERROR: Unable to lock database: Permission denied",
            Failure(Trouble.OTHER, "ERROR: Unable to lock database: Permission denied"),
        ),
    ],
)
def test_what_apk_says(text: str, failure: Failure) -> None:
    assert apk.read(Finished((), 1, b"", text.encode())) == failure


def test_a_package_is_installed_from_the_lists_that_are_here() -> None:
    run = Answers({"apk add": [(0, "")], "apk info": [(0, "app\n")]})
    Apk(run).install("app")
    assert run.lines[0] == "apk add --no-progress --wait 60 app"


def test_lists_are_fetched_once_where_they_do_not_know_it() -> None:
    run = Answers({"apk add": [(1, UNKNOWN)]})
    with pytest.raises(Unavailable, match=r"apk knows no package app that could be installed; see `apk search -e app`"):
        Apk(run).install("app")
    assert run.lines == [f"apk add --no-progress --wait 60 {more}app" for more in ("", "--update-cache ")]


def test_carried_files_are_a_repository_of_their_own(tmp_path: Path) -> None:
    run = Answers(
        {
            "apk --print-arch": [(0, "x86_64\n")],
            "apk index": [(0, "")],
            "apk add": [(0, "")],
            "apk info": [(0, "app\n")],
        }
    )
    files = [
        package(tmp_path, *facts)
        for facts in (("app", "1.0-r0", "x86_64"), ("base", "1.0-r0"), ("app", "1.0-r0", "aarch64"))
    ]
    Apk(run).install_carried("app", files, tmp_path)
    shelf = tmp_path / "repository/x86_64"
    assert sorted(path.name for path in shelf.iterdir()) == ["app-1.0-r0.apk", "base-1.0-r0.apk"]
    assert (tmp_path / "repository/noarch/base-1.0-r0.apk").exists()
    listed = f"{shelf}/app-1.0-r0.apk {shelf}/base-1.0-r0.apk"
    only = f"--no-network --no-cache --allow-untrusted --repositories-file /dev/null --repository {shelf.parent}"
    assert run.lines[1:3] == [
        f"apk index --allow-untrusted --no-warnings --output {shelf}/APKINDEX.tar.gz {listed}",
        f"apk add --no-progress --wait 60 --upgrade {only} app",
    ]


def test_what_carried_files_lack_is_a_failure_that_names_it(tmp_path: Path) -> None:
    run = Answers({"apk --print-arch": [(0, "x86_64\n")], "apk index": [(0, "")], "apk add": [(2, MISSING)]})
    words = r"app can't be installed from the files carried for it: base \(no such package\): required by: app-1.0-r0"
    with pytest.raises(Unavailable, match=words):
        Apk(run).install_carried("app", [package(tmp_path, "app", "1.0-r0")], tmp_path)


def test_files_without_the_package_itself_are_refused(tmp_path: Path) -> None:
    run = Answers({"apk --print-arch": [(0, "x86_64\n")]})
    files = [package(tmp_path, "base", "1.0-r0"), package(tmp_path, "app", "1.0-r0", "aarch64")]
    with pytest.raises(Refused, match="and not app itself for this machine"):
        Apk(run).install_carried("app", files, tmp_path)


def test_what_a_package_file_says_of_itself(tmp_path: Path) -> None:
    assert apk.read_header(package(tmp_path, "app", "1.0-r0", "x86_64")) == Header("app", "1.0-r0", "x86_64")


@pytest.mark.parametrize("content", [b"", b"no package", gzip.compress(b"no tar"), segment({"a": "b"}, last=True)])
def test_what_is_no_package_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "0.apk"
    path.write_bytes(content)
    with pytest.raises(Refused, match=r"A carried \.apk file .*; carry it as `apk fetch` has it"):
        apk.read_header(path)
