from __future__ import annotations

import errno
import socket
from contextlib import closing
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.host.endpoints import Endpoint
from agent.host.endpoints import Protocol as Transport
from agent.resources import EVERY_ADDRESS, Port, parse_port

ADDRESSES = ["0.0.0.0", "127.0.0.1", "127.0.0.2", "[::]", "[::1]", "[::ffff:127.0.0.1]"]
NUMBERS = st.integers(1, 65535)
PROTOCOLS = st.sampled_from(["tcp", "udp"])
ANY_ADDRESS = (
    st.sampled_from([*ADDRESSES, "*"]) | st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map("[{}]".format)
)
PORTS = st.builds(
    lambda address, number, protocol: parse_port(f"{address}:{number}/{protocol}", "here"),
    ANY_ADDRESS,
    st.integers(1, 3),
    PROTOCOLS,
)


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("80", Port("tcp", EVERY_ADDRESS, 80)),
        ("*:80", Port("tcp", EVERY_ADDRESS, 80)),
        ("80/udp", Port("udp", EVERY_ADDRESS, 80)),
        ("1/tcp", Port("tcp", EVERY_ADDRESS, 1)),
        ("65535", Port("tcp", EVERY_ADDRESS, 65535)),
        ("00080", Port("tcp", EVERY_ADDRESS, 80)),
        ("127.0.0.1:5671", Port("tcp", "127.0.0.1", 5671)),
        ("0.0.0.0:53/udp", Port("udp", "0.0.0.0", 53)),
        ("[::1]:80", Port("tcp", "::1", 80)),
        ("[::]:80/udp", Port("udp", "::", 80)),
        ("[2001:DB8:0:0::1]:80", Port("tcp", "2001:db8::1", 80)),
        ("[::ffff:10.0.0.1]:80", Port("tcp", "10.0.0.1", 80)),
        ("[::ffff:0:0]:80", Port("tcp", "0.0.0.0", 80)),
    ],
)
def test_how_a_port_reads(text: str, port: Port) -> None:
    assert parse_port(text, "here") == port


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "65536",
        "99999",
        "100000",
        "-1",
        "+80",
        "8 0",
        " 80",
        "80 ",
        "80\n",
        "80\0",
        "٨٠",
        "http",
        "80/",
        "80/TCP",
        "80/sctp",
        "80/tcp/udp",
        "/tcp",
        ":80",
        "80:",
        "80:80",
        "80-90",
        "localhost:80",
        "127.0.0.1",
        "127.0.0.1:0",
        "127.0.0.1:80:90",
        "127.1:80",
        "127.0.0.01:80",
        "0x7f.0.0.1:80",
        "2130706433:80",
        "256.0.0.1:80",
        "[127.0.0.1]:80",
        "::1:80",
        "::80",
        "[]:80",
        "[[::1]]:80",
        "[[::1]:80",
        "[::1:80",
        "[::1]80",
        "[*]:80",
        "**:80",
        "[fe80::1%eth0]:80",
        "[::1%\n]:80",
        "127.0.0.1%lo:80",
    ],
)
def test_no_port(text: str) -> None:
    with pytest.raises(Refused, match=r"^here: "):
        parse_port(text, "here")


@given(st.text(st.sampled_from("0123456789.:[]/*tcpud%f ") | st.characters()))
def test_any_text_is_a_port_or_refused(text: str) -> None:
    try:
        port = parse_port(text, "here")
    except Refused:
        return
    assert parse_port(str(port), "here") == port


@given(ANY_ADDRESS, NUMBERS, PROTOCOLS)
def test_a_port_comes_back(address: str, number: int, protocol: str) -> None:
    port = parse_port(f"{address}:{number}/{protocol}", "here")
    assert (port.number, port.protocol) == (number, protocol)
    assert parse_port(str(port), "here") == port


@given(PORTS, PORTS)
def test_overlapping_goes_both_ways_and_with_oneself(one: Port, other: Port) -> None:
    assert one.overlaps(one)
    assert one.overlaps(other) == other.overlaps(one)
    if one.number != other.number or one.protocol != other.protocol:
        assert not one.overlaps(other)


@given(PORTS)
def test_no_address_is_every_address(port: Port) -> None:
    assert Port(port.protocol, EVERY_ADDRESS, port.number).overlaps(port)


def test_what_a_port_is_to_the_kernel() -> None:
    assert parse_port("80", "here").endpoint == Endpoint(Transport.TCP, ip_address("::"), 80)
    assert parse_port("[::ffff:10.0.0.1]:80/udp", "here").endpoint == Endpoint(
        Transport.UDP, ip_address("10.0.0.1"), 80
    )


@pytest.mark.parametrize("second", ADDRESSES)
@pytest.mark.parametrize("first", ADDRESSES)
@pytest.mark.parametrize(("one", "other"), [("tcp", "tcp"), ("udp", "udp"), ("tcp", "udp")])
def test_two_ports_overlap_when_the_kernel_says_so(one: str, other: str, first: str, second: str) -> None:
    port, another = parse_port(f"{first}:80/{one}", "here"), parse_port(f"{second}:80/{other}", "here")
    assert port.overlaps(another) == is_in_the_way(first, one, second, other)


def is_in_the_way(first: str, one: str, second: str, other: str) -> bool:
    """Whether a socket on the first address is why the second can't have its number."""
    for _ in range(50):
        with closing(bound(first, 0, one)) as holder:
            number = int(holder.getsockname()[1])
            both = is_free(second, number, other)
        if both or is_free(second, number, other):  # else some other program has that number
            return not both
    raise AssertionError("no number stayed free")


def is_free(address: str, number: int, protocol: str) -> bool:
    try:
        bound(address, number, protocol).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def bound(address: str, number: int, protocol: str) -> socket.socket:
    """A socket as most programs open it: dual-stack where that exists."""
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    made = socket.socket(socket.AF_INET6 if "[" in address else socket.AF_INET, kind)
    try:
        made.bind((address.strip("[]"), number))
        if kind == socket.SOCK_STREAM:
            made.listen()
    except OSError:
        made.close()
        raise
    return made
