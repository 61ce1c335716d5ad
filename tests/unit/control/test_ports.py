"""Host ports never overlap, stay while they are assigned, and what is not free is never given."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.control.ports import (
    HostPort,
    PortRange,
    Situation,
    allocate,
    ephemeral_range,
    parse_range,
    pins,
    read_port,
)
from agent.errors import Refused

WITHIN = PortRange(20000, 20011)


def there(*, within=WITHIN, ephemeral=None, carried=(), taken=()):
    return Situation("a", within, ephemeral, carried, frozenset(taken))


numbers = st.integers(20000, 20011)
host_ports = st.builds(HostPort, st.sampled_from(["tcp", "udp"]), numbers)
wishes = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["tcp", "udp"]), max_size=6)
situations = st.builds(
    lambda carried, taken, low, high: there(
        carried=carried, taken=taken, ephemeral=PortRange(min(low, high), max(low, high))
    ),
    st.frozensets(numbers, max_size=4),
    st.frozensets(host_ports, max_size=4),
    st.integers(20009, 20015),
    st.integers(20009, 20015),
)


@given(wishes, situations)
def test_what_is_given_is_free_and_given_once(wanted, situation):
    try:
        given_ports = allocate(wanted, {}, situation)
    except Refused:
        return
    assert {name: port.protocol for name, port in given_ports.items()} == wanted
    assert len(set(given_ports.values())) == len(given_ports)
    for port in given_ports.values():
        assert port.number in situation.within
        assert port.number not in situation.ephemeral
        assert port.number not in situation.carried
        assert port not in situation.taken


@given(wishes, situations)
def test_it_is_refused_only_when_none_is_left(wanted, situation):
    free = {
        protocol: sum(
            1
            for number in range(20000, 20012)
            if number not in situation.ephemeral
            and number not in situation.carried
            and HostPort(protocol, number) not in situation.taken
        )
        for protocol in ("tcp", "udp")
    }
    fits = all(list(wanted.values()).count(protocol) <= free[protocol] for protocol in free)
    try:
        allocate(wanted, {}, situation)
        refused = False
    except Refused:
        refused = True
    assert refused is not fits


@given(wishes, situations, situations)
def test_what_was_given_stays_whatever_else_is_taken_since(wanted, first, second):
    try:
        before = allocate(wanted, {}, first)
        after = allocate(wanted, before, second)
    except Refused:
        return
    for name, port in before.items():
        if port.number not in second.carried:
            assert after[name] == port


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40))
def test_no_sequence_of_giving_and_taking_back_gives_a_port_twice(steps):
    held: dict[str, HostPort] = {}
    for name, comes in steps:
        if comes and name not in held:
            held[name] = allocate({"p": "tcp"}, {}, there(taken=held.values()))["p"]
        elif not comes:
            held.pop(name, None)
        assert len(set(held.values())) == len(held)
    # What was given back is given again: as many as there are names fit, however often that was.
    assert all(port.number < 20000 + 4 for port in held.values())


def test_tcp_and_udp_are_different():
    assert allocate({"dns": "udp", "web": "tcp"}, {}, there()) == {
        "dns": HostPort("udp", 20000),
        "web": HostPort("tcp", 20000),
    }


def test_a_port_that_the_node_has_come_to_carry_is_given_up():
    assert allocate({"web": "tcp"}, {"web": HostPort("tcp", 20003)}, there(carried=[20003]))["web"].number == 20000


def test_a_port_of_another_protocol_is_no_successor():
    assert allocate({"web": "udp"}, {"web": HostPort("tcp", 20003)}, there())["web"] == HostPort("udp", 20000)


def test_none_left_says_which_range_how_many_are_carried_and_how_many_assigned():
    taken = [HostPort("tcp", number) for number in range(20002, 20012)] + [HostPort("udp", 20000)]
    situation = there(carried=[22, 20000, 20001], taken=taken)
    with pytest.raises(
        Refused, match=r"a has no tcp port left in 20000-20011: it carries 2 there, and 10 are assigned"
    ):
        allocate({"web": "tcp"}, {}, situation)
    with pytest.raises(Refused, match=r"20000-20011 without 1024-65535, its ephemeral range"):
        allocate({"web": "tcp"}, {}, there(ephemeral=PortRange(1024, 65535)))


@pytest.mark.parametrize("text", ["", "20000", "20000-", "-1", "20010-20000", "80-90", "20000-70000", "²0000-30000"])
def test_a_range_is_one_of_unprivileged_ports(text):
    with pytest.raises(Refused, match="range of ports"):
        parse_range(text)


def test_a_range_and_a_port_are_read_as_they_are_written():
    assert parse_range(str(WITHIN)) == WITHIN
    assert read_port(str(HostPort("udp", 53))) == HostPort("udp", 53)


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ({"ephemeral": [32768, 60999]}, PortRange(32768, 60999)),
        ({"ephemeral": None}, None),
        ({"ephemeral": [1]}, None),
        ({"ephemeral": ["1", "2"]}, None),
        ({}, None),
    ],
)
def test_a_node_may_say_its_ephemeral_range(profile, told):
    assert ephemeral_range(profile) == told


@pytest.mark.parametrize(
    ("ports", "found"),
    [
        (["80"], {HostPort("tcp", 80)}),
        ([80], {HostPort("tcp", 80)}),
        (["53/udp", "[::1]:53"], {HostPort("udp", 53), HostPort("tcp", 53), HostPort("tcp", 1)}),
        (["8080:80/tcp"], {HostPort("tcp", 8080), HostPort("tcp", 80)}),
        (["${port.web}", "${port.web}:80/udp"], set()),
        ("80", set()),
        (None, set()),
    ],
)
def test_pins_are_the_numbers_that_an_author_chose(ports, found):
    assert pins([{"kind": "service", "ports": ports}]) == found
