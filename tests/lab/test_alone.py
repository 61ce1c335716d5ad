"""The native bundle on a machine without any network and without a source of packages: all of it is in the one file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.machines import LONG, STATE, Lab, Machine

# The first test waits for the machines' image.
pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]
SHELF = Path("/srv/packages")
NATIVE = ROOT / "agent/bundles/native/bundle.toml"
FILES = STATE / "run/package-files"


# Everything at once, as when the power goes; from within, because unpacking takes only seconds.
_CUT_SHORT = """
setsid /root/agent up --once >/root/up.log 2>&1 </dev/null &
until grep -q '^Package: erlang-base$' /var/lib/dpkg/status && dpkg=$(pgrep -x dpkg); do
  kill -0 $!
done
kill -9 $! $(pgrep -x apt-get) $dpkg || true
"""


@pytest.fixture(scope="module")
def machine(lab: Lab) -> Iterator[Machine]:
    made = lab.machine("alone", alone=True)
    assert made.sh("ip -oneline address show scope global") == ""
    yield made
    made.remove()


@pytest.fixture(scope="module")
def carrier(machine: Machine, built_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the native bundle and every package that the machine had in its source, of which it then has none."""
    folder = tmp_path_factory.mktemp("alone") / "bundle"
    blobs = folder / "blobs"
    blobs.mkdir(parents=True)
    machine.fetch(SHELF, blobs)
    machine.sh(f"rm -r {SHELF} /etc/apt/sources.list /var/lib/apt/lists /var/cache/apt")
    for path in blobs.iterdir():
        if path.suffix != ".deb":
            path.unlink()
    files = json.dumps(sorted(path.name for path in blobs.iterdir()))
    named = re.compile(r'^kind = "package"$', re.MULTILINE)
    (folder / "bundle.toml").write_text(named.sub(f'kind = "package"\nfiles = {files}', NATIVE.read_text()))
    packed = folder.with_name("agent")
    subprocess.run([built_file, "bundle", "pack", folder, "-o", packed], check=True, capture_output=True)
    shutil.rmtree(folder)
    return packed


@pytest.fixture(scope="module")
def founder(machine: Machine, carrier: Path) -> Machine:
    """The machine after it has founded a mesh; the first try was cut short while packages were unpacked."""
    machine.put(carrier, Path("/root/agent"))
    machine.sh(_CUT_SHORT)
    machine.wait(lambda: machine.run("pgrep", "-x", "dpkg|apt-get").returncode != 0)
    assert machine.sh("dpkg --audit")
    assert machine.exists(FILES)
    told = machine.raise_()
    assert told["package:rabbitmq-server"][0] in ("created", "changed")
    return machine


def test_it_founds_a_mesh(founder: Machine) -> None:
    founder.ask("/root/agent", "install")
    founder.wait(lambda: founder.status()["link"]["state"].startswith("up"), LONG)
    told = json.loads(founder.ask("/root/agent", "control", "node", "list", "-o", "json"))
    assert [(node["name"], node["state"]) for node in told["nodes"]] == [("alone", "here")]
    for unit in ("broker.service", "control.service"):
        assert founder.unit(unit, "ActiveState") == ["active"]


def test_daemons_of_the_packages_never_ran(founder: Machine) -> None:
    for unit in ("rabbitmq-server.service", "epmd.service", "epmd.socket"):
        assert founder.unit(unit, "LoadState", "ActiveState") == ["masked", "inactive"]
    assert "rabbitmq-server.service: " not in founder.sh("journalctl --quiet --no-pager --output=cat")
    assert not founder.exists(Path("/usr/sbin/policy-rc.d"))


def test_only_what_is_required_was_installed_and_nothing_else_is_left(founder: Machine) -> None:
    # Both were among the carried files.
    assert [founder.run("dpkg", "-s", name).returncode for name in ("cron", "at")] == [1, 1]
    assert founder.sh("dpkg --audit") == ""
    assert not founder.exists(FILES)


def test_a_second_plan_is_empty(founder: Machine) -> None:
    done = founder.agent("plan", "--exit-code")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
