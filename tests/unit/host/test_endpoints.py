from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.endpoints import Endpoint, Protocol, addresses_overlap

ADDRESSES = st.sampled_from(["0.0.0.0", "127.0.0.1", "127.0.0.2", "::", "::1", "::ffff:127.0.0.1", "::ffff:0.0.0.0"])


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "0.0.0.0", True),
        ("::", "0.0.0.0", True),
        ("::", "10.0.0.1", True),
        ("::", "::1", True),
        ("::1", "127.0.0.1", False),
        ("::1", "0.0.0.0", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::ffff:127.0.0.1", "0.0.0.0", True),
        ("::ffff:0.0.0.0", "10.0.0.1", True),
        ("::ffff:127.0.0.1", "::1", False),
    ],
)
def test_addresses_overlap_as_in_the_kernel(one: str, other: str, overlap: bool) -> None:
    assert addresses_overlap(ip_address(one), ip_address(other)) is overlap


@given(ADDRESSES, ADDRESSES)
def test_overlapping_is_symmetric_and_holds_for_oneself(one: str, other: str) -> None:
    a, b = ip_address(one), ip_address(other)
    assert addresses_overlap(a, b) == addresses_overlap(b, a)
    assert addresses_overlap(a, a)


def test_protocols_and_ports_never_meet() -> None:
    tcp = Endpoint(Protocol.TCP, ip_address("0.0.0.0"), 53)
    assert tcp.overlaps(Endpoint(Protocol.TCP, ip_address("::"), 53))
    assert not tcp.overlaps(Endpoint(Protocol.UDP, ip_address("0.0.0.0"), 53))
    assert not tcp.overlaps(Endpoint(Protocol.TCP, ip_address("0.0.0.0"), 54))


def test_an_endpoint_reads_as_it_is_written() -> None:
    assert str(Endpoint(Protocol.TCP, ip_address("127.0.0.1"), 5671)) == "127.0.0.1:5671/tcp"
    assert str(Endpoint(Protocol.UDP, ip_address("::"), 53)) == "[::]:53/udp"
