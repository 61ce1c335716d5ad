"""Who may do what on the broker, made so through its management API.

- The peer's certificate is pinned before the administrator's password is sent, as for AMQP.
- Every call says how it should be, not what to change: one that failed half-way is simply made again.
- An account has its topic permissions before its plain ones, so that no moment allows more than the end.
- Patterns are anchored and escaped, with `\\z` at the end: `$` would also match before a last line break.
- A node's queue is bound to no exchange that nodes may publish to. RabbitMQ checks a message's routing key
  against topic permissions but not the further keys in its CC and BCC headers, so a binding of `node.b` to
  `mesh` would let `node.a` write there. Declarations go by the default exchange, to the queue's own name.
- One thread at a time.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote, urlsplit

from agent.broker.pins import pinned_context
from agent.errors import AgentError, Refused, Unavailable
from agent.fields import JsonValue
from agent.wire import ALIVE, CONTROL_QUEUE, ENROL, EXCHANGE, PARKED_QUEUE, REPORT, join_account, node_queue

_VHOST = quote("/", safe="")
_TIMEOUT = 10.0
_NOTHING = "^$"
_DEAD = "control.dead"
# A node needs one connection with a consumer's, a publisher's and a request's channel. More than one, because after a
# silent loss the broker holds the old one for two more heartbeats.
_NODE_LIMITS = {"max-connections": 4, "max-channels": 12}
# A token may be tried by several machines at once, of which one wins.
_JOIN_LIMITS = {"max-connections": 8, "max-channels": 16}


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a queue holds. Both in force at once."""

    messages: int
    octets: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much the broker keeps for whom. `control` rejects what is beyond, the others drop their oldest.

    `deliveries` is how often a message of `control` may come back unacknowledged before it is parked: one
    that no client can decode would otherwise end every connection that reads it, for ever.
    """

    control: Bound = Bound(20_000, 64 * 1024 * 1024)
    node: Bound = Bound(100, 64 * 1024 * 1024)
    parked: Bound = Bound(1_000, 32 * 1024 * 1024)
    deliveries: int = 20


@dataclass(frozen=True, slots=True)
class Management:
    """The management API: `address` is https://HOST:PORT, known by any of `pins`."""

    address: str
    account: str
    password: str = field(repr=False)
    pins: frozenset[str]


class Accounts(Protocol):
    """The broker as the control plane arranges it.

    Everything can be done again. Unavailable when the broker doesn't answer now; Refused when it won't do it.
    """

    def ensure_topology(self) -> None:
        """The exchange, the control plane's queues and their bindings. Refused when one is there but
        different.
        """

    def make_node(self, name: str, password: str) -> None:
        """A node's queue and account; the account gets this password."""

    def make_join(self, name: str, password: str) -> None:
        """The account of a token for this node: it may ask to enrol, and hear the answer."""

    def set_password(self, account: str, password: str) -> None:
        """Change a password. Connections that are open stay."""

    def delete_account(self, account: str) -> None:
        """End an account and, at once, its connections."""

    def close_connections_of(self, account: str) -> None:
        """Disconnect an account; it may come back."""

    def has_queue(self, queue: str) -> bool:
        """Whether there is such a queue."""

    def delete_queue(self, queue: str) -> None:
        """End a queue with all that is in it."""

    def purge_queue(self, queue: str) -> None:
        """Drop what waits in a queue."""


class BrokerAccounts:
    """`Accounts`, by HTTP."""

    def __init__(self, management: Management, bounds: Bounds) -> None:
        self._management = management
        self._bounds = bounds

    def ensure_topology(self) -> None:
        bounds = self._bounds
        self._put(f"exchanges/{_VHOST}/{EXCHANGE}", {"type": "topic", "durable": True})
        self._put_queue(PARKED_QUEUE, {"x-overflow": "drop-head", **_limits(bounds.parked)})
        self._put_queue(
            CONTROL_QUEUE,
            {
                # A classic queue loses messages when its single active consumer changes (RabbitMQ 3.10).
                "x-queue-type": "quorum",
                "x-single-active-consumer": True,
                "x-overflow": "reject-publish",
                **_limits(bounds.control),
                "x-delivery-limit": bounds.deliveries,
                "x-dead-letter-exchange": _DEAD,
            },
        )
        # What came back too often, or was given up, is parked. What expired (an alive that nobody heard) is dead as
        # well, and is nothing.
        self._put(f"exchanges/{_VHOST}/{_DEAD}", {"type": "headers", "durable": True})
        for reason in ("delivery_limit", "rejected"):
            dead: JsonValue = {"x-match": "all-with-x", "x-first-death-reason": reason}
            binding: dict[str, JsonValue] = {"routing_key": "", "arguments": dead}
            self._call("POST", f"bindings/{_VHOST}/e/{_DEAD}/q/{PARKED_QUEUE}", binding)
        for key in (ENROL, REPORT, ALIVE):
            self._call("POST", f"bindings/{_VHOST}/e/{EXCHANGE}/q/{CONTROL_QUEUE}", {"routing_key": key})

    def make_node(self, name: str, password: str) -> None:
        queue = node_queue(name)
        self._put_queue(queue, {"x-overflow": "drop-head", **_limits(self._bounds.node)})
        self._put_account(queue, password, _NODE_LIMITS, publish=(ENROL, REPORT, ALIVE), read=_exactly(queue))

    def make_join(self, name: str, password: str) -> None:
        self._put_account(join_account(name), password, _JOIN_LIMITS, publish=(ENROL,), read=_NOTHING)

    def set_password(self, account: str, password: str) -> None:
        if not password:
            raise Refused(f"the account {account} would get an empty password")
        self._put(f"users/{_path(account)}", {"password": password, "tags": ""})

    def delete_account(self, account: str) -> None:
        self._call("DELETE", f"users/{_path(account)}", absent_is_fine=True)

    def close_connections_of(self, account: str) -> None:
        self._call("DELETE", f"connections/username/{_path(account)}", absent_is_fine=True)

    def has_queue(self, queue: str) -> bool:
        return self._call("GET", f"queues/{_VHOST}/{_path(queue)}", absent_is_fine=True) is not None

    def delete_queue(self, queue: str) -> None:
        self._call("DELETE", f"queues/{_VHOST}/{_path(queue)}", absent_is_fine=True)

    def purge_queue(self, queue: str) -> None:
        self._call("DELETE", f"queues/{_VHOST}/{_path(queue)}/contents", absent_is_fine=True)

    def _put_account(
        self, account: str, password: str, limits: Mapping[str, int], *, publish: tuple[str, ...], read: str
    ) -> None:
        self.set_password(account, password)
        self._put(
            f"topic-permissions/{_VHOST}/{_path(account)}",
            {"exchange": EXCHANGE, "write": _exactly(*publish), "read": _NOTHING},
        )
        for limit, value in limits.items():
            self._put(f"user-limits/{_path(account)}/{limit}", {"value": value})
        # Last, because without them an account can't even log in.
        self._put(
            f"permissions/{_VHOST}/{_path(account)}",
            {"configure": _NOTHING, "write": _exactly(EXCHANGE), "read": read},
        )

    def _put_queue(self, queue: str, arguments: dict[str, JsonValue]) -> None:
        try:
            self._put(f"queues/{_VHOST}/{_path(queue)}", {"durable": True, "arguments": arguments})
        except Refused as error:
            raise Refused(
                f"the broker has a queue {queue} that is not as this control plane wants it: {error}; "
                "delete the queue (what waits in it is lost) or go back to the version that made it"
            ) from error

    def _put(self, path: str, body: dict[str, JsonValue]) -> None:
        self._call("PUT", path, body)

    def _call(
        self, method: str, path: str, body: dict[str, JsonValue] | None = None, *, absent_is_fine: bool = False
    ) -> JsonValue:
        status, answer = self._exchange(method, f"/api/{path}", body)
        if status == http.client.UNAUTHORIZED:
            raise Unavailable(
                f"the broker's management API at {self._management.address} does not take the password of "
                f"{self._management.account}; the one in control.toml is not the one the broker was made with"
            )
        if status == http.client.NOT_FOUND and absent_is_fine:
            return None
        if status >= http.client.INTERNAL_SERVER_ERROR:
            raise Unavailable(f"the broker's management API failed at {method} {path}: {_why(answer, status)}")
        if status >= http.client.BAD_REQUEST:
            raise Refused(f"the broker refused {method} {path}: {_why(answer, status)}")
        return answer

    def _exchange(self, method: str, path: str, body: dict[str, JsonValue] | None) -> tuple[int, JsonValue]:
        management = self._management
        where = urlsplit(management.address)
        what = f"the broker's management API at {management.address}"
        sockets: list[ssl.SSLSocket] = []
        connection = http.client.HTTPSConnection(
            where.hostname or "",
            where.port,
            timeout=_TIMEOUT,
            context=pinned_context(management.pins, what, sockets.append),
        )
        credentials = base64.b64encode(f"{management.account}:{management.password}".encode()).decode("ascii")
        headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else None
        except AgentError:
            raise
        except ConnectionRefusedError as error:
            raise Unavailable(f"nothing listens at {management.address}, {what}") from error
        except TimeoutError as error:
            raise Unavailable(f"{what} does not answer in time") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(f"{what} does not answer as one: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()
            for one in sockets:
                one.close()


def _limits(bound: Bound) -> dict[str, JsonValue]:
    return {"x-max-length": bound.messages, "x-max-length-bytes": bound.octets}


def _exactly(*names: str) -> str:
    """A pattern of Erlang's `re` that matches these names and no other."""
    return rf"\A(?:{'|'.join(re.escape(name) for name in names)})\z"


def _path(name: str) -> str:
    return quote(name, safe="")


def _why(answer: JsonValue, status: int) -> str:
    reason = answer.get("reason") if isinstance(answer, dict) else None
    return str(reason) if reason else f"HTTP status {status}"
