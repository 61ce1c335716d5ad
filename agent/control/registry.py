"""What a node's statement means for its record: decided purely, stored by who asks.

- The account that speaks is proved by the broker; a body that names another node is nobody's.
- An alive moves last-seen to now, tells how far the node's clock is off, and nothing else. A report moves last-seen to
  its own timestamp at most, never back.
- A report that isn't a refusal replaces what the node holds; with serial 0 it says nothing of that, and an
  empty one without a serial (a peer that leaves headers out) never replaces a copy that isn't empty.
- A report may say at which address others reach the node now, as its profile did when it joined.
- A refusal moves neither holdings nor ports, and never counts as reported.
- A reported serial lower than the wanted one is answered with the wanted declaration, once per change of the
  reported one; a higher one with the same content signed anew as the next serial. A machine's first report without a
  serial (a peer that leaves headers out) is answered with the wanted declaration too.
- After a restore a node may hold, under any serial, what this store never said. So it is sent nothing before its first
  report, which proves nothing, and is answered with what is wanted, signed anew above all that it reported.
- The recovery copy holds what the node said it holds, as far as it was ever declared to it, and what was
  declared since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from agent import wire
from agent.broker import Message
from agent.control import bounds
from agent.errors import Refused
from agent.fields import JsonValue, dns_label, quoted

# Half of the serials that exist: what is above could not be followed by a rotation's worth of new ones.
LARGEST_REPORTED = 2**52


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node refused a declaration. `serial` is None if it could not verify the bytes; `at` is our clock."""

    why: str
    serial: int | None
    at: float


@dataclass(frozen=True, slots=True)
class Node:
    """All that is known of an enrolled node. Times are seconds since the epoch, by the control plane's clock.

    `last_seen` is None until its own account first speaks. `wanted` is the newest declaration's serial, 0
    when there is none; `reported` the last reported one, None when none was ever told. `holdings` are the
    assigned ids it owns, as of the declaration `holdings_serial`; `carried` the ports of its carried
    resources.
    `confirmed` is the newest of our keys that it is known to trust, `counter` the last one of its signed statements,
    `clock_offset` by how many seconds its clock was ahead of ours at its last alive. Serials up to `floor` may be of
    what was said after the backup that this store was restored from; None until its first report since.
    """

    name: str
    public_key: bytes
    enrolled: float
    confirmed: bytes = b""
    counter: int = 0
    clock_offset: float | None = None
    overlay_key: bytes = b""
    profile: Mapping[str, JsonValue] = field(default_factory=dict)
    version: str = ""
    last_seen: float | None = None
    wanted: int = 0
    reported: int | None = None
    reported_at: float | None = None
    holdings: tuple[str, ...] = ()
    holdings_serial: int = 0
    carried: tuple[int, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    refusal: Refusal | None = None
    floor: int | None = 0

    @property
    def has_spoken(self) -> bool:
        """Whether it ever said anything, and since a restore what it holds."""
        return self.last_seen is not None and self.floor is not None

    @property
    def holds(self) -> int | None:
        """The newest of this store's declarations that it has reported; None when it hasn't reported any."""
        is_known = self.reported is not None and self.floor is not None and self.reported > self.floor
        return self.reported if is_known else None


@dataclass(frozen=True, slots=True)
class There:
    """An alive as it was understood; `at` is the sender's clock."""

    node: str
    at: float | None


class Answer(Enum):
    """What a report is answered with."""

    NOTHING = "nothing"
    AGAIN = "the wanted declaration again"
    ANEW = "the wanted content under a higher serial"


@dataclass(frozen=True, slots=True)
class Spoken:
    """A report as it was understood. `serial` and `address` are None where the header was left out; `at` is by the
    sender's clock.
    """

    node: str
    report: wire.Report
    serial: int | None
    version: str
    at: float | None
    address: str | None = None


def read_alive(message: Message) -> There:
    """Who is there. Refused when the message can't be understood or isn't that node's."""
    node = wire.decode_alive(message.body).node
    _check_speaker(node, message.user_id)
    return There(node, message.timestamp)


def read_report(message: Message) -> Spoken:
    """A node's report, bounded. Refused when it can't be understood or isn't that node's."""
    report = wire.decode_report(message.body)
    _check_speaker(report.node, message.user_id)
    version = message.headers.get(wire.VERSION_HEADER)
    return Spoken(
        node=report.node,
        report=wire.Report(
            node=report.node,
            applied=bounds.clean_ids(report.applied),
            failed=bounds.clean_failures(report.failed),
            refused=bounds.clean(report.refused, bounds.LONGEST_REASON),
            carried=bounds.clean_ports(report.carried),
        ),
        serial=_serial(message.headers),
        version=bounds.clean(version, bounds.LONGEST_VERSION) if isinstance(version, str) else "",
        at=message.timestamp,
        address=bounds.address(message.headers.get(wire.ADDRESS_HEADER)),
    )


def after_report(node: Node, spoken: Spoken, now: float) -> tuple[Node, Answer]:
    """The node's record after a report, and what the report is answered with."""
    report = spoken.report
    heard = replace(node, last_seen=_last_seen(node, spoken.at, now), version=spoken.version or node.version)
    if report.refused:
        return replace(heard, refusal=Refusal(report.refused, spoken.serial, now)), Answer.NOTHING
    speaks_of_holdings = spoken.serial != 0 and (spoken.serial is not None or bool(report.applied))
    speaks_of_ports = spoken.serial is not None or bool(report.carried)
    changed = replace(
        heard,
        profile={**node.profile, "address": spoken.address} if spoken.address else node.profile,
        holdings=report.applied if speaks_of_holdings else node.holdings,
        holdings_serial=(spoken.serial or node.holdings_serial),
        carried=report.carried if speaks_of_ports else node.carried,
        failures=report.failed,
        reported=node.reported if spoken.serial is None else spoken.serial,
        reported_at=now,
    )
    if node.floor is None:
        changed = replace(changed, floor=max(node.wanted, spoken.serial or 0))
        return changed, Answer.ANEW if node.wanted else Answer.NOTHING
    return changed, _answer(node, spoken.serial)


def recovery_copy(holdings: Collection[str], declared: Mapping[str, int], holdings_serial: int) -> tuple[str, ...]:
    """The ids that the mesh may order this node to remove, sorted.

    `declared` has every id ever declared to it with the newest serial that held it; those newer than
    `holdings_serial` were declared since the node last said what it holds. So a hostile node can't have the
    mesh order the removal of what the mesh never declared.
    """
    held = frozenset(holdings)
    return tuple(sorted(id for id, serial in declared.items() if id in held or serial > holdings_serial))


def next_serial(node: Node) -> int:
    """The serial after all that this node was sent or has reported."""
    return max(node.wanted, node.reported or 0) + 1


def _answer(node: Node, serial: int | None) -> Answer:
    if serial is None and node.reported_at is None and node.wanted:
        # It never says a serial, and what waited for it may have gone with the machine before.
        return Answer.AGAIN
    if serial is None or not node.wanted or serial == node.wanted:
        return Answer.NOTHING
    if serial > node.wanted:
        return Answer.ANEW
    return Answer.NOTHING if serial == node.reported else Answer.AGAIN


def _last_seen(node: Node, said: float | None, now: float) -> float | None:
    if said is None:
        # It says nothing of when; that it ever spoke is still news.
        return now if node.last_seen is None else node.last_seen
    at = min(said, now)
    return at if node.last_seen is None else max(at, node.last_seen)


def _serial(headers: Mapping[str, object]) -> int | None:
    serial = headers.get(wire.SERIAL_HEADER)
    if serial is None:
        return None
    if not isinstance(serial, int) or isinstance(serial, bool):
        raise Refused(f"its serial is a {type(serial).__name__}; it must be a whole number")
    if not 0 <= serial <= LARGEST_REPORTED:
        raise Refused(f"its serial {serial} is not between 0 and 2^52")
    return serial


def _check_speaker(node: str, user_id: str | None) -> None:
    dns_label(node, "the node name")
    if not user_id:
        raise Refused("it has no user_id, so nothing proves who sent it")
    if user_id != wire.node_queue(node):
        raise Refused(f"it speaks for {quoted(node)}, but the account {quoted(user_id)} sent it")
