from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.host.commands import Finished
from agent.kinds.kind import Held, Machine, Verb, Wanted
from agent.kinds.package import Package, rpm
from agent.kinds.package.daemons import Policy, Units
from agent.kinds.package.dnf import Dnf
from agent.kinds.package.installer import Status
from agent.kinds.package.installers import Installers
from agent.kinds.package.rpm import Edition, Rpm
from agent.kinds.package.zypper import Zypper
from agent.resources import FromBlob, Resource, specs
from tests.unit.kinds.package.answers import Answers
from tests.unit.kinds.package.rpms import APP, BASE, BROKEN, FAILING, WAITING, Root


def versions(root: Root) -> dict[str, str]:
    done = root.run(["rpm", "-qa", "--queryformat", "%{NAME} %{VERSION}\\n"])
    return dict(line.split() for line in done.stdout.decode().splitlines())


def test_carried_files_go_in_together_whatever_their_order(root: Root) -> None:
    one = Rpm(root.run, root.database)
    assert one.status(APP) is Status.ABSENT
    one.install_carried(APP, [root.file(APP, "1.0"), root.file(BASE, "1.0")], root.packages)
    assert one.status(APP) is Status.INSTALLED
    assert versions(root) == {APP: "1.0", BASE: "1.0"}


def test_what_is_installed_becomes_newer_and_never_older(root: Root) -> None:
    one = Rpm(root.run, root.database)
    older, newer = [root.file(APP, "1.0"), root.file(BASE, "1.0")], [root.file(APP, "2.0"), root.file(BASE, "1.5")]
    one.install_carried(APP, [*newer, *older], root.packages)
    assert versions(root) == {APP: "2.0", BASE: "1.5"}
    one.install_carried(APP, older, root.packages)
    one.install_carried(APP, newer, root.packages)
    assert versions(root) == {APP: "2.0", BASE: "1.5"}


def test_files_without_the_package_itself_are_refused(root: Root) -> None:
    with pytest.raises(Refused, match=f"and not {APP} itself"):
        Rpm(root.run, root.database).install_carried(APP, [root.file(BASE, "1.0")], root.packages)
    assert versions(root) == {}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (BROKEN, rf"error: Failed dependencies: no-such-thing is needed by {BROKEN}-1.0-1.noarch"),
        (FAILING, r"error: .*this one never installs"),
    ],
)
def test_why_carried_files_are_not_taken(root: Root, name: str, why: str) -> None:
    words = f"The package {name} can't be installed from the files carried for it: {why}"
    with pytest.raises(Unavailable, match=words):
        Rpm(root.run, root.database).install_carried(name, [root.file(name, "1.0")], root.packages)
    assert versions(root) == {}


def test_an_installation_that_is_killed_is_finished_by_the_next_try(root: Root) -> None:
    files = [root.file(WAITING, "1.0"), root.file(BASE, "1.0")]
    (root.root / "wait").touch()
    argv = ["rpm", "--root", root.root, "--upgrade", *files]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as rpm:
        try:
            deadline = time.monotonic() + 60
            while not (root.root / "reached").exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            held = rf"process {rpm.pid} \(.*rpm.*\) holds {root.database}/\.rpm\.lock; wait for"
            with pytest.raises(Unavailable, match=held):
                Rpm(root.run, root.database, patience=0.3).wait_for_lock()
        finally:
            rpm.kill()
    (root.root / "wait").unlink()
    one = Rpm(root.run, root.database)
    one.wait_for_lock()
    one.install_carried(WAITING, files, root.packages)
    assert versions(root) == {WAITING: "1.0", BASE: "1.0"}


@pytest.mark.parametrize("installer", [Dnf, Zypper])
def test_the_kind_installs_carried_files_and_masks_units(root: Root, tmp_path: Path, installer: type) -> None:
    blobs = [FromBlob(path.name, path.name, 1) for path in (root.file(APP, "1.0"), root.file(BASE, "1.0"))]
    spec = specs.Package(APP, ("app.service",), (FromBlob("app_1.0_amd64.deb", "deb", 1), *blobs))
    resource = Resource("package", APP, spec, (), "{}")
    (tmp_path / "state/run").mkdir(parents=True)
    machine = Machine(tmp_path / "state", b"", lambda name: iter([(root.packages / name).read_bytes()]))
    made = installer(root.run, root.database)
    kind = Package(Installers((made,)), Policy(tmp_path / "policy-rc.d"), Units(tmp_path / "units"))
    wanted, held = Wanted(resource, ""), Held(False, "")
    kind.check(spec, machine, ())
    plan = kind.plan(wanted, kind.observe(wanted, machine), None)
    assert plan.verb is Verb.CREATE
    kind.apply(wanted, plan, machine.mark(wanted, found=False), machine)
    assert versions(root) == {APP: "1.0", BASE: "1.0"}
    assert kind.plan(wanted, kind.observe(wanted, machine), held).verb is Verb.KEEP
    assert str((tmp_path / "units/app.service").readlink()) == "/dev/null"
    assert sorted(path.name for path in (machine.state / "run").iterdir()) == ["packages"]
    removal = kind.remove(resource, held, machine, data=False)
    assert removal.left == f"the package {APP} stays installed; `{made.name} remove {APP}` takes it away"
    assert not (tmp_path / "units").exists()


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        (("0", "1.10", "1"), ("0", "1.9", "1"), 1),
        (("0", "1.0~rc1", "1"), ("0", "1.0", "1"), -1),
        (("1", "1.0", "1"), ("0", "2.0", "1"), 1),
        (("0", "1.0", "5"), ("0", "1.0.1", "1"), -1),
        (("0", "1.0", "1.fc40"), ("0", "1.0", "1.fc40"), 0),
    ],
)
def test_which_version_is_newer(
    root: Root, one: tuple[str, str, str], other: tuple[str, str, str], result: int
) -> None:
    assert Rpm(root.run, root.database)._compare(Edition("a", one), Edition("a", other)) == result


def test_what_this_machine_s_files_are_for() -> None:
    assert Rpm(Answers({"rpm --eval %{_arch}": [(0, "x86_64\n")]})).architectures() == {"x86_64", "noarch"}


def test_a_database_that_cannot_be_read_is_no_absent_package() -> None:
    # rpm 4.18.0
    said = "error: cannot open Packages index using sqlite - Permission denied (13)\nerror: cannot open database"
    with pytest.raises(Unavailable, match="cannot open Packages index"):
        Rpm(Answers({"rpm -q": [(1, said)]})).status("app")


def test_the_line_that_says_why() -> None:
    # rpm 4.18.0
    text = "\tpackage app-1.1-1.noarch (which is newer than app-1.0-1.noarch) is already installed\n"
    assert rpm.read(Finished((), 2, b"", text.encode())).line == text.strip()
