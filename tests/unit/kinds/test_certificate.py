from __future__ import annotations

import hashlib
import pwd
import socket
import ssl
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.kinds.certificate import Certificate
from agent.kinds.kind import Held, Verb

NOBODY = pwd.getpwnam("nobody")
KIND = Certificate()


def places(bench, owner: str = "root") -> tuple[Path, Path]:
    folder = bench.machine.state / "secrets" / owner
    return folder / "a.crt", folder / "a.key"


def text(path: Path) -> str:
    argv = ["openssl", "x509", "-in", path, "-noout", "-text", "-fingerprint", "-sha256"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_the_pair_is_made_once_for_its_owner(bench) -> None:
    resource = bench.resource("certificate", "a", owner="nobody")
    assert bench.make(KIND, resource).verb is Verb.CREATE
    certificate, key = places(bench, "nobody")
    for path, mode in ((certificate, 0o644), (key, 0o600), (key.parent, 0o700)):
        status = path.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (mode, NOBODY.pw_uid)
    before = certificate.read_bytes(), key.read_bytes()
    assert bench.plan(KIND, resource).verb is Verb.KEEP
    assert (certificate.read_bytes(), key.read_bytes()) == before
    assert sorted(path.name for path in key.parent.iterdir()) == ["a.crt", "a.key"]


def test_it_names_its_hosts_for_its_days(bench) -> None:
    resource = bench.resource("certificate", "a", hosts=["broker.example", "192.0.2.1", "2001:db8::1"], days=2)
    bench.make(KIND, resource)
    shown = text(places(bench)[0])
    assert "DNS:broker.example, IP Address:192.0.2.1, IP Address:2001:DB8:0:0:0:0:0:1" in shown
    assert "CA:FALSE" in shown
    assert "NIST CURVE: P-256" in shown
    checked = ["openssl", "x509", "-in", places(bench)[0], "-noout", "-checkend"]
    assert subprocess.run([*checked, str(2 * 86400 - 600)]).returncode == 0
    assert subprocess.run([*checked, str(2 * 86400 + 600)]).returncode == 1


def test_a_client_that_pins_its_fingerprint_meets_its_server(bench) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    certificate, key = places(bench)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=lambda: server.wrap_socket(theirs, server_side=True).close())
        thread.start()
        with client.wrap_socket(ours, server_hostname="localhost") as connection:
            der = connection.getpeercert(binary_form=True) or b""
        thread.join()
    assert KIND.value(resource.spec, bench.machine) == hashlib.sha256(der).hexdigest()


def test_the_value_is_what_openssl_calls_its_fingerprint(bench) -> None:
    resource = bench.resource("certificate", "a")
    assert KIND.value(resource.spec, bench.machine) is None
    bench.make(KIND, resource)
    shown = text(places(bench)[0]).rpartition("=")[2].strip().replace(":", "").lower()
    assert KIND.value(resource.spec, bench.machine) == shown


@pytest.mark.parametrize("half", [0, 1])
def test_half_of_a_pair_that_was_never_finished_is_made_anew(bench, half: int) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    before = places(bench)[0].read_bytes()
    places(bench)[half].unlink()
    bench.held[resource.id] = Held(found=False, stamp="")
    plan = bench.make(KIND, resource)
    assert (plan.verb, plan.reason) == (Verb.CREATE, "it was half made")
    assert places(bench)[0].read_bytes() != before
    assert bench.plan(KIND, resource).verb is Verb.KEEP


def test_two_halves_that_were_never_finished_are_made_anew(bench) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    old = places(bench)[0].read_bytes()
    KIND.remove(resource, bench.held[resource.id], bench.machine, data=True)
    del bench.held[resource.id]
    bench.make(KIND, resource)
    places(bench)[0].write_bytes(old)
    bench.held[resource.id] = Held(found=False, stamp="")
    assert bench.make(KIND, resource).verb is Verb.CREATE
    assert bench.plan(KIND, resource).verb is Verb.KEEP


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("ledger", ["kept", "lost"])
def test_half_of_a_finished_pair_is_lost_in_words(bench, half: int, ledger: str) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    places(bench)[half].unlink()
    if ledger == "lost":
        bench.forget()
    with pytest.raises(Unavailable, match=rf"{places(bench)[half].name} is not there; .*--remake certificate:a`"):
        bench.make(KIND, resource)
    assert not places(bench)[half].exists()


def test_a_lost_pair_is_a_failure_in_words(bench) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    for path in places(bench):
        path.unlink()
    with pytest.raises(Unavailable, match="that was made here is lost"):
        bench.make(KIND, resource)


@pytest.mark.parametrize("damage", ["another pair's", "nonsense"])
def test_a_pair_that_does_not_belong_together_is_a_failure_in_words(bench, damage: str) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    other = bench.resource("certificate", "b")
    bench.make(KIND, other)
    replacement = places(bench)[1].with_name("b.key").read_bytes() if damage == "another pair's" else b"?"
    places(bench)[1].write_bytes(replacement)
    with pytest.raises(Unavailable, match=r"don't belong together; .*--remake certificate:a`"):
        bench.plan(KIND, resource)


def test_a_certificate_that_is_none_has_no_value(bench) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    places(bench)[0].write_bytes(b"\xff?")
    with pytest.raises(Unavailable, match="doesn't hold a certificate"):
        KIND.value(resource.spec, bench.machine)


def test_modes_are_mended_without_making_another(bench) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    before = places(bench)[1].read_bytes()
    places(bench)[1].chmod(0o644)
    assert bench.make(KIND, resource).reason == "mode 0644, not 0600"
    assert stat.S_IMODE(places(bench)[1].stat().st_mode) == 0o600
    assert places(bench)[1].read_bytes() == before


def test_a_lost_ledger_takes_what_is_in_the_agents_own_folder(bench) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    before = places(bench)[0].read_bytes()
    bench.forget()
    assert bench.make(KIND, resource).verb is Verb.ADOPT
    assert places(bench)[0].read_bytes() == before


def test_it_is_kept_when_dropped_and_goes_with_the_rest(bench) -> None:
    resource = bench.resource("certificate", "a")
    bench.make(KIND, resource)
    held = bench.held[resource.id]
    assert "were kept, because others may have pinned them" in bench.remove(KIND, resource).left
    assert all(path.exists() for path in places(bench))
    for _ in range(2):
        assert KIND.remove(resource, held, bench.machine, data=True).left == ""
    assert not places(bench)[0].parent.exists()
