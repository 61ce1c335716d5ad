"""Packages from files that a bundle carries, on the machine's own dpkg, with packages that are built here."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.kinds.kind import Held, Machine, Plan, Standing, Verb, Wanted
from agent.kinds.package import Package, carried
from agent.kinds.package.apt import Apt
from agent.kinds.package.daemons import Policy
from agent.kinds.package.installer import Status
from agent.kinds.package.installers import Installers
from agent.kinds.package.package import Action
from agent.resources import Context, FromBlob, Resource, parse_resource

REPOSITORY = Path(__file__).parents[4]
BASE, APP, OTHER = "mesh-agent-test-base", "mesh-agent-test-app", "mesh-agent-test-other"
MADE = Held(False, "")
# Waits where a test wants to kill it, and says which process to kill.
SCRIPT = """#!/bin/sh
set -e
echo $$ >'{ground}/{stage}.part'
mv '{ground}/{stage}.part' '{ground}/{stage}'
while test -e '{ground}/wait-{stage}'; do sleep 0.05; done
"""


@dataclass(frozen=True)
class _Facts:
    sha256: str
    size: int


@dataclass
class Bench:
    """A kind, a state folder, and a bundle's blobs: the files in the folder `blobs`."""

    ground: Path
    kind: Package = field(default_factory=lambda: Package(Installers((Apt(),))))

    @property
    def machine(self) -> Machine:
        return Machine(self.ground / "a state", b"", lambda name: iter([self.read(name)]))

    def facts(self, name: str) -> _Facts | None:
        path = self.ground / "blobs" / name
        return _Facts(hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size) if path.exists() else None

    def read(self, name: str) -> bytes:
        return (self.ground / "blobs" / name).read_bytes()

    def resource(self, *files: str, name: str = APP) -> Resource:
        item = {"kind": "package", "name": name, "files": list(files)}
        return parse_resource(item, "resource", Context(self.machine.state, blobs=self))

    def plan(self, resource: Resource, held: Held | None = MADE) -> Plan[Action]:
        wanted = Wanted(resource, resource.digest)
        return self.kind.plan(wanted, self.kind.observe(wanted, self.machine), held)

    def up(self, resource: Resource) -> str:
        """Make it so; the reason that the plan gave."""
        plan, wanted = self.plan(resource), Wanted(resource, resource.digest)
        self.check(resource)
        self.kind.apply(wanted, plan, self.machine.mark(wanted, found=False), self.machine)
        assert self.plan(resource).verb is Verb.KEEP
        assert not carried.has_leftovers(self.machine)
        return plan.reason

    def check(self, resource: Resource) -> None:
        self.kind.check(resource.spec, self.machine, ())  # type: ignore[arg-type]

    def build(self, name: str, version: str, *, depends: str = "", architecture: str = "all", stages: str = "") -> str:
        """A package file among the blobs, by its name there; `stages` are the scripts in which it waits."""
        root = self.ground / f"{name}-{version}-{architecture}"
        (root / "DEBIAN").mkdir(parents=True)
        lines = [f"Package: {name}", f"Version: {version}", f"Architecture: {architecture}"]
        lines += ["Maintainer: nobody", "Description: a test", *([f"Depends: {depends}"] if depends else [])]
        (root / "DEBIAN/control").write_text("\n".join([*lines, ""]))
        for stage in stages.split():
            script = root / "DEBIAN" / stage
            script.write_text(SCRIPT.format(ground=self.ground, stage=stage))
            script.chmod(0o755)
        blob = f"{name}_{version}_{architecture}.deb".replace(":", "%3a")
        path = self.ground / "blobs" / blob
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", root, path], check=True, capture_output=True)
        return blob

    def version(self, name: str) -> str:
        """The installed version; "" when it is not there."""
        done = subprocess.run(["dpkg-query", "-Wf", "${db:Status-Status} ${Version}", name], capture_output=True)
        status, _, version = done.stdout.decode().partition(" ")
        return version if status == "installed" else ""


@pytest.fixture
def bench(ground: Path) -> Iterator[Bench]:
    for name in ("blobs", "a state/run"):
        (ground / name).mkdir(parents=True)
    yield Bench(ground)
    for path in ground.glob("wait-*"):
        path.unlink()
    Apt().wait_for_lock()
    subprocess.run(["dpkg", "--purge", "--force-all", APP, OTHER, BASE], capture_output=True, check=True)
    assert not Policy().has_leftovers()


def test_a_package_and_what_it_requires_come_from_carried_files_alone(bench: Bench) -> None:
    needed = [bench.build(APP, "1:1.0~rc1", depends=BASE), bench.build(BASE, "1.0")]
    resource = bench.resource(*needed, bench.build(OTHER, "1.0"))
    assert bench.plan(resource).verb is Verb.CREATE
    assert bench.up(resource) == "it is not installed"
    # What nothing requires is left, and what was required goes with the package that required it.
    assert [bench.version(name) for name in (APP, BASE, OTHER)] == ["1:1.0~rc1", "1.0", ""]
    shown = subprocess.run(["apt-mark", "showauto", APP, BASE], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [BASE]


def test_other_files_make_a_package_of_ours_newer_and_never_older(bench: Bench) -> None:
    base = bench.build(BASE, "1.0")
    bench.up(bench.resource(bench.build(APP, "1.0", depends=BASE), base))
    newer = bench.resource(bench.build(APP, "2.0", depends=f"{BASE} (>= 1.5)"), bench.build(BASE, "1.5"))
    assert bench.up(newer) == "other files are carried than it was installed from"
    assert (bench.version(APP), bench.version(BASE)) == ("2.0", "1.5")
    bench.up(bench.resource(f"{APP}_1.0_all.deb", base))
    assert (bench.version(APP), bench.version(BASE)) == ("2.0", "1.5")


def test_one_that_was_here_stays_as_it_was(bench: Bench) -> None:
    subprocess.run(["dpkg", "-i", bench.ground / "blobs" / bench.build(APP, "1.0")], check=True, capture_output=True)
    resource = bench.resource(bench.build(APP, "2.0"))
    assert bench.plan(resource, held=None).verb is Verb.ADOPT
    assert bench.plan(resource).verb is Verb.KEEP


def test_what_is_carried_for_other_machines_is_not_looked_at(bench: Bench) -> None:
    foreign = [bench.build(APP, "3.0", architecture="s390x"), "app-3.0-1.x86_64.rpm", "app-3.0-r0.apk"]
    for name in foreign[1:]:
        (bench.ground / "blobs" / name).write_text("no package at all")
    bench.up(bench.resource(*foreign, bench.build(APP, "1.0")))
    assert bench.version(APP) == "1.0"
    # Installed as it is, nothing has to be carried for it.
    bench.check(bench.resource(*foreign))


def test_files_that_fit_nothing_here_are_refused_before_anything_is_touched(bench: Bench) -> None:
    resource = bench.resource(bench.build(APP, "1.0", architecture="s390x"))
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True).stdout.strip()
    words = f"None of the files carried for the package {APP} fits this machine, where apt takes .deb files for"
    with pytest.raises(Refused, match=f"{words} all or {architecture}; add one to its `files`"):
        bench.check(resource)


def test_files_without_the_package_itself_are_refused(bench: Bench) -> None:
    resource = bench.resource(bench.build(BASE, "1.0"))
    with pytest.raises(Refused, match=f"and not {APP} itself for this machine; add it to the package's `files`"):
        bench.up(resource)
    assert not carried.has_leftovers(bench.machine)
    assert bench.version(BASE) == ""


def test_what_carried_files_lack_is_a_failure_that_names_it(bench: Bench) -> None:
    resource = bench.resource(bench.build(APP, "1.0", depends=BASE))
    why = rf"{APP} can't be installed from the files carried for it: {APP} : Depends: {BASE} but it is not installable"
    with pytest.raises(Unavailable, match=why):
        bench.up(resource)


def test_what_a_killed_agent_left_is_tidied_up_even_if_all_is_installed(bench: Bench) -> None:
    resource = bench.resource(bench.build(APP, "1.0"))
    bench.up(resource)
    (bench.machine.state / "run/package-files").mkdir()
    (bench.machine.state / "run/package-files/0.deb").touch()
    plan = bench.plan(resource)
    assert (plan.reason, plan.actions) == ("an installation was cut short", (Action.TIDY,))
    bench.up(resource)


INSTALL = """
import sys
from pathlib import Path
from tests.unit.kinds.package.test_carried import Bench
bench = Bench(Path(sys.argv[1]))
bench.up(bench.resource(*sys.argv[2:]))
"""


@pytest.mark.parametrize("stage", ["preinst", "postinst"])
@pytest.mark.parametrize("which", [BASE, APP])
def test_an_installation_that_is_killed_is_finished_by_the_next_try(bench: Bench, which: str, stage: str) -> None:
    files = [
        bench.build(APP, "1.0", depends=BASE, stages=stage if which == APP else ""),
        bench.build(BASE, "1.0", stages=stage if which == BASE else ""),
    ]
    (bench.ground / f"wait-{stage}").touch()
    agent = subprocess.Popen([sys.executable, "-c", INSTALL, str(bench.ground), *files], cwd=REPOSITORY)
    deadline = time.monotonic() + 60
    while not (bench.ground / stage).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # All at once, as when the power goes: the agent, apt-get, dpkg and the package's script.
    agent.send_signal(signal.SIGKILL)
    os.killpg(os.getpgid(int((bench.ground / stage).read_text())), signal.SIGKILL)
    agent.wait()
    assert carried.has_leftovers(bench.machine)
    (bench.ground / f"wait-{stage}").unlink()
    resource = bench.resource(*files)
    bench.up(resource)
    assert [bench.version(name) for name in (APP, BASE)] == ["1.0", "1.0"]
    wanted = Wanted(resource, resource.digest)
    assert bench.kind.standing(bench.kind.observe(wanted, bench.machine)) is Standing.MADE
    assert bench.kind.installers.choose().status(APP) is Status.INSTALLED


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("app_1%3a1.0-1_amd64.deb", True),
        ("app_1.0_all.deb", True),
        ("app_1.0_arm64.deb", False),
        ("app.deb", True),
        ("app-1.0-1.x86_64.rpm", False),
        ("app_1.0_amd64.apk", False),
    ],
)
def test_which_files_fit_a_debian_machine(name: str, fits: bool) -> None:
    one = FromBlob(name, "", 1)
    assert carried.fitting([one], ".deb", {"amd64", "all"}) == ((one,) if fits else ())


@pytest.mark.parametrize(
    ("stem", "architecture"),
    [
        ("app_1.0_amd64", "amd64"),
        ("app-1.0-1.x86_64", "x86_64"),
        ("app-1.0-1.src", "src"),
        ("app-1.0-r0.aarch64", "aarch64"),
        ("app-1.0-r0", None),
        ("app", None),
        ("app_1.0", None),
    ],
)
def test_the_architecture_that_a_name_ends_with(stem: str, architecture: str | None) -> None:
    assert carried.architecture(stem) == architecture
