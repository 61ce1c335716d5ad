"""Host ports for what is assigned to a node: decided purely.

- Out of a settable range, without the node's ephemeral one, which its own outgoing connections take from; never one
  that the node carries, that is assigned or declared there, or that was given back and may still be open.
- TCP and UDP are different. What a node carries is known by number alone, so it counts as both.
- A port that was given stays, unless the node has come to carry it itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.errors import Refused
from agent.fields import JsonValue, quoted
from agent.resources.ports import Protocol, parse_port

_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_NUMBER = re.compile(r"[0-9]{1,5}")
# Below are the ports that are assigned by name (RFC 6335, section 6).
_LOWEST, _HIGHEST = 1024, 65535


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """A port of a node, at every address."""

    protocol: Protocol
    number: int

    def __str__(self) -> str:
        return f"{self.number}/{self.protocol}"


def read_port(text: str) -> HostPort:
    """What a host port's string stands for."""
    port = parse_port(text, "port")
    return HostPort(port.protocol, port.number)


@dataclass(frozen=True, slots=True)
class PortRange:
    """The numbers from `low` to `high`, both among them."""

    low: int
    high: int

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


# Below Linux's ephemeral range, 32768-60999 (ip_local_port_range in ip(7)).
USUAL_RANGE = PortRange(20000, 29999)


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a node's ports. `ephemeral` is None when the node didn't say it.

    `carried` are numbers, `taken` what is assigned or declared there already, or not yet known to be given back.
    """

    node: str
    within: PortRange
    ephemeral: PortRange | None
    carried: Collection[int]
    taken: Collection[HostPort]


def allocate(wanted: Mapping[str, Protocol], kept: Mapping[str, HostPort], there: Situation) -> dict[str, HostPort]:
    """A host port for each wanted name, `kept` ones as they are.

    Refused when none is left, with the numbers that explain it.
    """
    carried, taken = frozenset(there.carried), set(there.taken)
    given = {
        name: port for name, port in kept.items() if wanted.get(name) == port.protocol and port.number not in carried
    }
    taken.update(given.values())
    for name, protocol in wanted.items():
        if name not in given:
            given[name] = _lowest_free(protocol, there, carried, taken)
            taken.add(given[name])
    return {name: given[name] for name in wanted}


def parse_range(text: str) -> PortRange:
    """Read LOW-HIGH. Refused when it is no range of unprivileged ports."""
    match = _RANGE.fullmatch(text)
    if not match or not _LOWEST <= int(match[1]) <= int(match[2]) <= _HIGHEST:
        raise Refused(
            f"{quoted(text)} is no range of ports; write LOW-HIGH, from {_LOWEST} to {_HIGHEST}, as in {USUAL_RANGE}"
        )
    return PortRange(int(match[1]), int(match[2]))


def ephemeral_range(profile: Mapping[str, JsonValue]) -> PortRange | None:
    """The node's ephemeral range, as its profile says it (`ephemeral: [LOW, HIGH]`); None when it says none."""
    told = profile.get("ephemeral")
    if not isinstance(told, list) or len(told) != 2:
        return None
    low, high = told
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    return PortRange(low, high)


def pins(items: Iterable[Mapping[str, JsonValue]]) -> frozenset[HostPort]:
    """The host ports that a list's author chose: every number in its `ports` that no reference stands for.

    A container's inner ports are among them: to leave one of those free costs nothing.
    """
    return frozenset(
        HostPort("udp" if protocol == "udp" else "tcp", int(number))
        for item in items
        for numbers, protocol in _written(item.get("ports"))
        for number in _NUMBER.findall(numbers)
    )


def _written(ports: JsonValue) -> Sequence[tuple[str, str]]:
    entries = ports if isinstance(ports, list) else []
    texts = (str(entry) for entry in entries if isinstance(entry, (int, str)))
    return [(numbers, protocol) for numbers, _, protocol in (text.partition("/") for text in texts if "${" not in text)]


def _lowest_free(
    protocol: Protocol, there: Situation, carried: frozenset[int], taken: Collection[HostPort]
) -> HostPort:
    for number in range(there.within.low, there.within.high + 1):
        port = HostPort(protocol, number)
        ephemeral = there.ephemeral is not None and number in there.ephemeral
        if not ephemeral and number not in carried and port not in taken:
            return port
    held = sum(1 for port in taken if port.protocol == protocol and port.number in there.within)
    without = f" without {there.ephemeral}, its ephemeral range" if there.ephemeral else ""
    raise Refused(
        f"{there.node} has no {protocol} port left in {there.within}{without}: it carries "
        f"{sum(1 for number in carried if number in there.within)} there, and {held} are assigned or declared; "
        "`agent control port range LOW-HIGH` chooses another range"
    )
