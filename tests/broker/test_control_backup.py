"""The control plane's machine is lost: what its backup brings back, on another machine and another broker."""

from __future__ import annotations

import io
import shutil
import tarfile

import pytest

from agent.control.backup import restore_backup
from agent.errors import Refused
from agent.token import parse_token
from tests.broker.nodes import SOON, Founder, mesh_of
from tests.broker.plane import serving
from tests.broker.rabbit import wait_until


def give_certificate(rabbit, state):
    shutil.copytree(rabbit.state / "secrets", state / "secrets")


@pytest.fixture
def places(ground):
    return ground / "first", ground / "second", ground / "backup"


def test_nodes_go_on_under_the_restored_control_plane(rabbit, places):
    first, second, file = places
    with serving(rabbit, first) as plane:
        give_certificate(rabbit, first)
        a, b, founder = plane.join("a"), plane.join("b"), plane.join("founder")
        with a, b, founder:
            plane.declare("a", "/etc/x")
            a.report(1, applied=["file:/etc/x"], carried=[80])
            b.report(0)
            founder.report(0)
            for name in ("a", "b", "founder"):
                plane.wait_for(name, lambda detail: detail.row.last_seen)
            plane.declare("b", "/etc/due")
            b.declaration()  # sent, and never reported
            with plane.control() as control:
                control.backup(file)
            plane.declare("a", "/etc/y")  # after the backup
            a.report(2, applied=["file:/etc/y"], carried=[80])
            plane.wait_for("a", lambda detail: detail.row.applied == 2)
    assert file.stat().st_mode & 0o777 == 0o600
    rabbit.clear()
    assert restore_backup(second, file) == "founder"
    assert (second / "secrets" / "rabbitmq" / "broker.crt").read_bytes() == (
        rabbit.state / "secrets" / "rabbitmq" / "broker.crt"
    ).read_bytes()
    with serving(rabbit, second) as plane:
        assert plane.founder_token.exists()
        detail = plane.detail("a")
        assert (detail.holdings, detail.row.wanted, detail.row.applied) == (("file:/etc/x",), 1, 1)
        with plane.join("a", a.key) as again:
            again.report(2, applied=["file:/etc/y"], carried=[80])
            declaration = again.declaration()
            assert declaration.serial == 3
            assert [item["name"] for item in declaration.says["resources"]] == ["/etc/x"]
            again.state("report", 1, 3, applied=["file:/etc/x"], carried=[80])
            plane.wait_for("a", lambda detail: detail.row.applied == 3)
        with plane.join("b", b.key) as again:
            assert again.has_nothing()  # what it holds by now, only it can say
            again.report(0)
            assert again.declaration().serial == 2


def test_machines_join_the_restored_one_and_change_nothing(rabbit, ground):
    with mesh_of(rabbit, ground) as mesh:
        founder = mesh.founder
        give_certificate(rabbit, founder.state)
        machine, agent = mesh.joined("a")
        assert founder.ask("secret", "set", "db", stdin="a first value").returncode == 0
        one = machine.a_file("one", "${secret.db}", template=True)
        founder.wait_for_applied("a", founder.declare_list("a", one))
        assert founder.ask("backup", str(ground / "backup")).returncode == 0
        latest = founder.declare_list("a", one, machine.a_file("two"))
        founder.wait_for_applied("a", latest)
        made = (machine.targets / "one").stat()
        founder.kill()
        rabbit.clear()
        agent.wait_for("no link to the mesh", SOON)
        assert agent.end() == 0
        other = ground / "other"
        other.mkdir()
        restored = Founder(rabbit, other)
        (other / "control" / "control.toml").unlink()
        asked = restored.ask("restore", str(ground / "backup"))
        assert asked.returncode == 0, asked.stderr
        assert "agent up --name founder" in asked.stdout
        restored = Founder(rabbit, other)
        mesh._stack.callback(restored.kill)
        restored.start()
        # Under the serial by which the machine knows the list that the backup doesn't know.
        three = machine.a_file("three")
        assert restored.declare_list("a", one, three) == latest
        token = parse_token(restored.ask("token", "create", "a", "--replace").stdout.strip())
        agent = machine.linked(token)
        restored.wait_for_applied("a", latest + 1)
        assert "refused" not in agent.output
        assert (machine.targets / "one").stat().st_ino == made.st_ino
        # Of the second file the backup knew nothing, and the mesh takes back what is declared no more.
        wait_until(lambda: {path.name for path in machine.targets.iterdir()} == {"one", "three"}, SOON)
        # The mesh's secrets are what they were, until they are set anew.
        assert (machine.targets / "one").read_text() == "a first value"
        assert restored.ask("secret", "set", "db", stdin="another value").returncode == 0
        assert (machine.targets / "one").read_text() == "another value"


def test_where_a_control_plane_has_run_nothing_is_restored(rabbit, places):
    first, _, file = places
    with serving(rabbit, first) as plane:
        give_certificate(rabbit, first)
        with plane.control() as control:
            control.backup(file)
        with pytest.raises(Refused, match="has run here already"):
            restore_backup(first, file)
        plane.join("a")


def test_a_backup_without_its_certificate_is_refused(rabbit, places):
    first, _, file = places
    with serving(rabbit, first) as plane, plane.control() as control:
        with pytest.raises(Refused, match="No certificate"):
            control.backup(file)
        give_certificate(rabbit, first)
        (first / "control" / "keys" / "1.seed").rename(first / "kept")
        with pytest.raises(Refused, match=r"1\.seed is lost"):
            control.backup(file)
    assert not file.exists()
    assert not (first / "control" / "store.copy").exists()


def packed(path, *members):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members:
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))


ABOUT = ("backup.json", b'{"version":1,"node":"f","made_at":1}')
KEY = ("keys/1.seed", b"k" * 32)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ((), "not whole"),
        ((ABOUT, KEY), "not whole"),
        ((ABOUT, ("store.db", b"x")), "not whole"),
        ((ABOUT, ("store.db", b"x"), ("keys/1.seed", b"short")), "not whole"),
        ((ABOUT, KEY, ("store.db", b"x"), ("../evil", b"x")), "no place"),
        ((ABOUT, KEY, ("store.db", b"x"), ("/etc/passwd", b"x")), "no place"),
        ((ABOUT, KEY, ("store.db", b"x"), ("secrets/../../x.crt", b"x")), "no place"),
        ((ABOUT, ABOUT), "no place"),
        ((("backup.json", b'{"version":2,"node":"f"}'), KEY, ("store.db", b"x")), "newer program"),
    ],
)
def test_what_is_no_backup_changes_nothing(places, ground, members, why):
    _, second, file = places
    packed(file, *members)
    with pytest.raises(Refused, match=why):
        restore_backup(second, file)
    assert not second.exists()
    file.write_bytes(b"no archive")
    with pytest.raises(Refused, match="no backup"):
        restore_backup(second, file)
    file.unlink()
    with pytest.raises(Refused, match="not there"):
        restore_backup(second, file)
    assert list(ground.iterdir()) == []


def test_a_link_in_a_backup_is_refused(places):
    _, second, file = places
    with tarfile.open(file, "w:gz") as archive:
        about = tarfile.TarInfo("keys/1.seed")
        about.type, about.linkname = tarfile.SYMTYPE, "/etc/shadow"
        archive.addfile(about)
    with pytest.raises(Refused, match="no place"):
        restore_backup(second, file)


def test_a_damaged_store_is_not_left_there(rabbit, places):
    first, second, file = places
    with serving(rabbit, first):
        pass
    packed(file, ABOUT, KEY, ("store.db", b"this is no database, whatever its name is"))
    with pytest.raises(Exception, match=r"damaged|not a database"):
        restore_backup(second, file)
    assert not (second / "control" / "store.db").exists()
