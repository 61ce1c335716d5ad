from __future__ import annotations

import itertools
import os
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from agent.host import sockets
from agent.host.endpoints import Endpoint, Protocol
from agent.host.sockets import Bound
from tests.broker.rabbit import free_ports

KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


def bound(protocol: Protocol, address: str, port: int = 0) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    result = socket.socket(family, KINDS[protocol])
    try:
        result.bind((address, port))
        if protocol is Protocol.TCP:
            result.listen()
    except OSError:
        result.close()
        raise
    return result


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_an_open_socket_is_found_with_its_process(protocol: Protocol, address: str) -> None:
    with bound(protocol, address) as held:
        mine = Endpoint(protocol, ip_address(address), held.getsockname()[1])
        other = Protocol.UDP if protocol is Protocol.TCP else Protocol.TCP
        (holder,) = sockets.holders([mine, Endpoint(other, mine.address, mine.port)])
    assert holder.wanted == holder.endpoint == mine
    assert holder.pids[0] == os.getpid()
    assert holder.command.startswith(Path("/proc/self/cmdline").read_text().split("\0")[0])
    assert str(holder).startswith(f"process {os.getpid()} (")
    assert sockets.holders([mine]) == []


@pytest.mark.parametrize(
    ("there", "wanted"), list(itertools.product(["127.0.0.1", "127.0.0.2", "0.0.0.0", "::", "::1"], repeat=2))
)
def test_what_is_held_is_what_the_kernel_refuses(there: str, wanted: str) -> None:
    (port,) = free_ports(1)
    with bound(Protocol.TCP, there, port):
        holders = sockets.holders([Endpoint(Protocol.TCP, ip_address(wanted), port)])
        try:
            bound(Protocol.TCP, wanted, port).close()
            refused = False
        except OSError:
            refused = True
    assert bool(holders) is refused


def test_a_connection_holds_no_port() -> None:
    with bound(Protocol.TCP, "127.0.0.1") as server, socket.create_connection(server.getsockname()) as client:
        port = client.getsockname()[1]
        assert sockets.holders([Endpoint(Protocol.TCP, ip_address("127.0.0.1"), port)]) == []


def test_the_kernels_table_is_read() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n"
        "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1673 1 0 100\n"
        "   1: 00000000:0017 00000000:0000 01 00000000:00000000 00:00000000 00000000 0 0 1674 1 0 100\n"
    )
    assert sockets.parse_table(text, Protocol.TCP) == [Bound(Endpoint(Protocol.TCP, ip_address("0.0.0.0"), 22), 1673)]
    assert len(sockets.parse_table(text, Protocol.UDP)) == 2
