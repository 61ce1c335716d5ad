"""Addresses, logins and pins, without a broker."""

from __future__ import annotations

import hashlib
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.broker import Address, Login, PinMismatch, Unreachable, connect, parse_address
from agent.broker.pins import pinned_context
from agent.errors import Refused


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("amqps://127.0.0.1:5671", Address("127.0.0.1", 5671)),
        ("amqps://founder.example:443", Address("founder.example", 443)),
        ("amqps://[2001:db8::1]:5671", Address("2001:db8::1", 5671)),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "founder:5671",
        "amqp://founder:5671",
        "amqps://founder",
        "amqps://founder:0",
        "amqps://founder:65536",
        "amqps://:5671",
        "amqps://u:p@founder:5671",
        "amqps://founder:5671/",
        "amqps://2001:db8::1:5671",
        "amqps://founder:5671\n",
    ],
)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(Refused, match="broker's address"):
        parse_address(text)


def test_a_login_does_not_show_its_password() -> None:
    assert "swordfish" not in repr(Login(Address("h", 1), "node.a", "swordfish", frozenset()))


def test_the_room_can_be_imported_without_pika() -> None:
    check = "import sys, agent.broker, agent.control.accounts; sys.exit('pika' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


class Peer:
    """A TLS server that notes what it is told before the other side hangs up."""

    def __init__(self, certificate: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            try:
                with self._context.wrap_socket(connection, server_side=True) as tls:
                    self.heard.append(tls.recv(1000))
                    tls.sendall(b"no broker at all")
            except OSError:  # what a client that turns away leaves behind
                self.heard.append(b"")

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "peer.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         # Neither current nor for this host: the pin is all that is asked.
         "-days", "1", "-subj", "/CN=elsewhere", "-keyout", path, "-out", tmp_path / "certificate"],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + (tmp_path / "certificate").read_text())
    return path


@pytest.fixture
def peer(certificate: Path) -> Iterator[Peer]:
    peer = Peer(certificate)
    yield peer
    peer.close()


def pin(certificate: Path) -> str:
    pem = certificate.read_text()
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERT") :])).hexdigest()


def test_a_pinned_certificate_is_all_that_is_asked(peer: Peer, certificate: Path) -> None:
    context = pinned_context(frozenset({"0" * 64, pin(certificate)}), "the peer", lambda _: None)
    with socket.create_connection(("127.0.0.1", peer.port)) as plain, context.wrap_socket(plain) as tls:
        tls.sendall(b"hello")
        assert tls.recv(100) == b"no broker at all"
    assert peer.heard == [b"hello"]


def test_another_certificate_hears_nothing_and_is_shown(peer: Peer, certificate: Path) -> None:
    with pytest.raises(PinMismatch, match=pin(certificate)) as caught:
        connect(Login(Address("127.0.0.1", peer.port), "node.a", "secret", frozenset({"0" * 64})))
    assert caught.value.shown == pin(certificate)
    peer.close()
    assert not any(peer.heard)


def test_what_speaks_tls_but_no_amqp_is_unreachable(peer: Peer, certificate: Path) -> None:
    with pytest.raises(Unreachable, match=rf"the broker at amqps://127.0.0.1:{peer.port}"):
        connect(Login(Address("127.0.0.1", peer.port), "node.a", "secret", frozenset({pin(certificate)})))
    assert peer.heard[0].startswith(b"AMQP")


def test_nothing_listening_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unreachable, match=f"nothing listens at amqps://127.0.0.1:{port}"):
        connect(Login(Address("127.0.0.1", port), "node.a", "secret", frozenset({"0" * 64})))


def test_a_host_that_does_not_exist_is_said() -> None:
    with pytest.raises(Unreachable, match=r"no-such-host\.invalid"):
        connect(Login(Address("no-such-host.invalid", 5671), "node.a", "secret", frozenset({"0" * 64})))


def test_what_speaks_no_tls_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-whatever\r\n")
                connection.recv(1000)

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(Unreachable, match="TLS"):
            connect(Login(Address("127.0.0.1", listener.getsockname()[1]), "node.a", "secret", frozenset({"0" * 64})))
        thread.join()
