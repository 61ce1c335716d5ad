"""The kind on the machine's own dpkg, with a package that is built here and comes from a folder."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.host import commands
from agent.host.commands import Finished
from agent.kinds.kind import Held, Machine, Plan, Standing, Verb, Wanted
from agent.kinds.package import Package
from agent.kinds.package.apt import Apt
from agent.kinds.package.daemons import Policy, Units
from agent.kinds.package.installer import Status
from agent.kinds.package.installers import Installers
from agent.kinds.package.note import Note
from agent.kinds.package.package import Action, Observed
from agent.resources import Context, Resource, parse_resource

REPOSITORY = Path(__file__).parents[4]
NAME = "mesh-agent-test-daemon"
UNIT = f"{NAME}.service"
POLICY = Path("/usr/sbin/policy-rc.d")
SYSTEM = Path("/etc/systemd/system")
MADE = Held(False, "")
WANTS = SYSTEM / "multi-user.target.wants" / UNIT

# What debhelper generates, and what a test needs to fail or to wait in the middle.
POSTINST = """#!/bin/sh
set -e
touch '{ground}/configuring'
while test -e '{ground}/wait'; do sleep 0.05; done
test ! -e '{ground}/fail'
deb-systemd-helper unmask {unit} || true
if deb-systemd-helper --quiet was-enabled {unit}; then
    deb-systemd-helper enable {unit} || true
else
    deb-systemd-helper update-state {unit} || true
fi
# As invoke-rc.d asks; itself it starts nothing where there is no runlevel, as in a container.
code=0
test ! -e {policy} || cp {policy} '{ground}/asked'
test ! -x {policy} || {policy} {name} start || code=$?
test "$code" = 101 || touch '{ground}/started'
"""
PRERM = """#!/bin/sh
deb-systemd-helper disable {unit} || :
"""
POSTRM = """#!/bin/sh
if test "$1" = purge; then
    deb-systemd-helper purge {unit}
    deb-systemd-helper unmask {unit}
fi
"""


@dataclass(frozen=True)
class Archive:
    """A folder as apt's only source, with one package in it."""

    ground: Path

    @property
    def folder(self) -> Path:
        return self.ground / "archive"

    def publish(self, version: str) -> None:
        """Put this version, and no other, into the archive."""
        root = self.ground / f"root-{version}"
        words = {"ground": self.ground, "name": NAME, "unit": UNIT, "policy": POLICY}
        control = f"Package: {NAME}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody\nDescription: a test\n"
        self._put(root / "DEBIAN/control", control)
        for name, text in (("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)):
            self._put(root / "DEBIAN" / name, text.format(**words), 0o755)
        unit = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
        self._put(root / "lib/systemd/system" / UNIT, unit)
        for old in self.folder.glob("*.deb"):
            old.unlink()
        package = self.folder / f"{NAME}_{version}_all.deb"
        subprocess.run(
            ["dpkg-deb", "--build", "--root-owner-group", root, package], check=True, stdout=subprocess.DEVNULL
        )
        content = package.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        entry = f"Filename: ./{package.name}\nSize: {len(content)}\nSHA256: {digest}\n"
        (self.folder / "Packages").write_text(control + entry)

    @property
    def options(self) -> list[str]:
        sources = self.ground / "sources.list"
        sources.write_text(f"deb [trusted=yes] file:{self.folder} ./\n")
        for folder in ("lists/partial", "cache/archives/partial"):
            (self.ground / folder).mkdir(parents=True, exist_ok=True)
        settings = {
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": self.ground / "lists",
            "Dir::Cache": self.ground / "cache",
            "APT::Sandbox::User": "root",
        }
        return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        check: bool = True,
    ) -> Finished:
        options = self.options if argv[0] in ("apt-get", "apt-cache") else []
        return commands.run([argv[0], *options, *argv[1:]], environment=environment, timeout=timeout, check=check)

    @staticmethod
    def _put(path: Path, text: str, mode: int = 0o644) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)


@dataclass(frozen=True)
class Bench:
    archive: Archive
    kind: Package
    machine: Machine

    def resource(self, *masks: str) -> Resource:
        item = {"kind": "package", "name": NAME, "masks": list(masks)}
        return parse_resource(item, "resource", Context(self.machine.state))

    def wanted(self, resource: Resource) -> Wanted:
        return Wanted(resource, resource.digest)

    def observe(self, resource: Resource) -> Observed:
        return self.kind.observe(self.wanted(resource), self.machine)

    def plan(self, resource: Resource, held: Held | None = MADE) -> Plan[Action]:
        return self.kind.plan(self.wanted(resource), self.observe(resource), held)

    def up(self, resource: Resource) -> Plan[Action]:
        plan, wanted = self.plan(resource), self.wanted(resource)
        self.kind.check(resource.spec, self.machine, ())  # type: ignore[arg-type]
        self.kind.apply(wanted, plan, self.machine.mark(wanted, found=False), self.machine)
        return plan

    @property
    def status(self) -> Status:
        return self.kind.installers.choose().status(NAME)

    @property
    def has_started(self) -> bool:
        return (self.archive.ground / "started").exists()


def bench_at(ground: Path) -> Bench:
    archive = Archive(ground)
    return Bench(
        archive, Package(Installers((Apt(archive.run),))), Machine(ground / "state", b"", lambda name: iter(()))
    )


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.02)


def policy_now() -> tuple[int, int, bytes] | None:
    """The machine's own policy-rc.d: its very inode, mode and content."""
    if not POLICY.exists():
        return None
    return POLICY.stat().st_ino, POLICY.stat().st_mode, POLICY.read_bytes()


@pytest.fixture
def bench(ground: Path) -> Iterator[Bench]:
    before = policy_now()
    made = bench_at(ground)
    for folder in (made.archive.folder, made.machine.state / "run"):
        folder.mkdir(parents=True)
    made.archive.publish("1.0")
    yield made
    (ground / "fail").unlink(missing_ok=True)
    (ground / "wait").unlink(missing_ok=True)
    Apt().wait_for_lock()
    subprocess.run(["dpkg", "--purge", "--force-all", NAME], stdout=subprocess.DEVNULL, check=True)
    (SYSTEM / UNIT).unlink(missing_ok=True)
    assert policy_now() == before
    assert not Policy().has_leftovers()


def test_a_package_is_installed_and_its_daemon_is_not_started(bench: Bench) -> None:
    resource = bench.resource(UNIT)
    assert bench.kind.standing(bench.observe(resource)) is Standing.ABSENT
    policy = policy_now()
    plan = bench.up(resource)
    assert (plan.verb, plan.reason) == (Verb.CREATE, "it is not installed")
    assert not bench.has_started
    assert b"# mesh-agent: temporary" in (bench.archive.ground / "asked").read_bytes()
    assert policy_now() == policy
    assert str((SYSTEM / UNIT).readlink()) == "/dev/null"
    assert bench.plan(resource).verb is Verb.KEEP
    # Without a ledger the note says whose it is.
    assert bench.kind.standing(bench.observe(resource)) is Standing.MADE
    assert bench.plan(resource, held=None).verb is Verb.ADOPT
    removal = bench.kind.remove(resource, MADE, bench.machine, data=False)
    assert removal.left == f"the package {NAME} stays installed; `apt-get remove {NAME}` takes it away"
    assert not os.path.lexists(SYSTEM / UNIT)
    assert not os.path.lexists(WANTS)
    assert list((bench.machine.state / "run/packages").iterdir()) == []
    assert bench.status is Status.INSTALLED
    assert bench.kind.remove(resource, MADE, bench.machine, data=False) == removal


def test_one_that_was_here_is_adopted_with_its_units(bench: Bench) -> None:
    with Policy().in_force():
        subprocess.run(
            ["dpkg", "--install", *bench.archive.folder.glob("*.deb")], stdout=subprocess.DEVNULL, check=True
        )
    resource = bench.resource(UNIT)
    assert bench.kind.standing(bench.observe(resource)) is Standing.FOREIGN
    plan = bench.plan(resource, held=None)
    assert (plan.verb, plan.actions) == (Verb.ADOPT, ())
    wanted = bench.wanted(resource)
    bench.kind.apply(wanted, plan, bench.machine.mark(wanted, found=True), bench.machine)
    assert not os.path.lexists(SYSTEM / UNIT)
    assert bench.kind.remove(resource, Held(True, ""), bench.machine, data=False).left == ""
    assert WANTS.is_symlink()


def test_lists_that_are_outdated_are_fetched_again(bench: Bench) -> None:
    bench.archive.run(["apt-get", "update"])
    bench.archive.publish("1.1")
    bench.up(bench.resource())
    shown = bench.archive.run(["dpkg-query", "-W", "-f", "${Version}", NAME])
    assert shown.stdout == b"1.1"


def test_an_installation_that_fails_says_why_and_is_finished_later(bench: Bench) -> None:
    (bench.archive.ground / "fail").touch()
    resource = bench.resource()
    with pytest.raises(Unavailable, match=rf"dpkg: error processing package {NAME} .*exit status 1"):
        bench.up(resource)
    plan = bench.plan(resource)
    assert (plan.verb, plan.reason) == (Verb.CHANGE, "its installation was cut short")
    (bench.archive.ground / "fail").unlink()
    bench.up(resource)
    assert bench.plan(resource).verb is Verb.KEEP
    assert not bench.has_started


INSTALL = """
import sys
from pathlib import Path
from tests.unit.kinds.package.test_package import UNIT, bench_at
bench = bench_at(Path(sys.argv[1]))
bench.up(bench.resource(UNIT))
"""


def test_an_agent_killed_in_the_middle_is_recovered_from(bench: Bench) -> None:
    ground = bench.archive.ground
    before = policy_now()
    (ground / "wait").touch()
    agent = subprocess.Popen([sys.executable, "-c", INSTALL, str(ground)], cwd=REPOSITORY)
    until((ground / "configuring").exists)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    # Its apt-get goes on, and needs the policy that it began with: nothing may be tidied up yet.
    resource = bench.resource(UNIT)
    assert bench.observe(resource).status is Status.INTERRUPTED
    assert bench.observe(resource).untidy
    hasty = Package(Installers((Apt(bench.archive.run, patience=0.3),)))
    wanted, plan = bench.wanted(resource), bench.plan(resource)
    with pytest.raises(Unavailable, match=r"Packages can't be installed now: process \d+ \(.*holds /var/lib/dpkg/lock"):
        hasty.apply(wanted, plan, bench.machine.mark(wanted, found=False), bench.machine)
    assert Policy().has_leftovers()
    (ground / "wait").unlink()
    bench.up(resource)
    assert not bench.has_started
    assert bench.plan(resource).verb is Verb.KEEP
    assert bench.kind.standing(bench.observe(resource)) is Standing.MADE
    assert policy_now() == before
    bench.kind.remove(resource, MADE, bench.machine, data=False)
    assert not os.path.lexists(SYSTEM / UNIT)


def test_what_a_killed_agent_left_is_tidied_up_even_if_all_is_installed(bench: Bench, ground: Path) -> None:
    kind = Package(bench.kind.installers, Policy(ground / "policy-rc.d"), Units(ground / "units"))
    resource = bench.resource()
    Policy(ground / "policy-rc.d")._place()
    wanted = bench.wanted(resource)
    plan = kind.plan(wanted, Observed(Status.INSTALLED, Note(), untidy=True), MADE)
    assert plan.actions == (Action.TIDY,)
    assert kind.observe(wanted, bench.machine).untidy
    kind.apply(wanted, plan, bench.machine.mark(wanted, found=False), bench.machine)
    assert not kind.observe(wanted, bench.machine).untidy
    assert bench.status is Status.ABSENT


def test_a_unit_of_the_machines_own_is_found_before_anything_is_touched(bench: Bench, ground: Path) -> None:
    (ground / UNIT).write_text("[Unit]\n")
    kind = Package(bench.kind.installers, Policy(), Units(ground))
    with pytest.raises(Unavailable, match="is this machine's own unit, so it can't be masked"):
        kind.check(bench.resource(UNIT).spec, bench.machine, ())  # type: ignore[arg-type]
