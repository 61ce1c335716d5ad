"""Who this machine is: name, role, settings and keys, as files in STATE/identity, each written whole and durably.

The name, the role and the values of `--set` are decided at the first `up` and remembered. The keys are made on the
machine and never leave it. The token is kept until the node's own account has spoken.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

from agent.envelope import SEED_BYTES, SigningKey
from agent.errors import Fatal, Refused
from agent.fields import Fields, JsonValue, canonical, parse_json
from agent.host import directories, files
from agent.token import Token, parse_token

T = TypeVar("T")

NODE_KEY_BYTES = 32

# What a person does when a file of the identity is damaged and there is no backup of it.
_COUNTERS_AT_ONCE = 1000
_RESET = "`agent reset` this node and join again"
_JOIN = "join again with a new token (`agent up --token-file FILE`; a founder's `agent up` gets one by itself)"
_REMEDIES = {
    "self.json": _RESET,
    "signing.seed": _RESET,
    "node.key": _RESET,
    "membership.json": f"remove it and {_JOIN}",
    "counter": f"remove it and membership.json and {_JOIN}, which counts anew",
    "token": "remove it and join again with a new one (`agent up --token-file FILE`)",
}


class Role(Enum):
    """`ALONE` raises what it carries and has no mesh; it may still become either of the others."""

    FOUNDER = "founder"
    JOINER = "joiner"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Self:
    """What was decided at the first `up`."""

    name: str
    role: Role
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Membership:
    """What enrolment gave: where the broker is (amqps://HOST:PORT), by which pins, as whom, and whose word counts.

    `joined_by` tells the token that it came from, without being one.
    """

    broker: str
    fingerprints: tuple[str, ...]
    account: str
    password: str = field(repr=False)
    queue: str
    signers: tuple[bytes, ...]
    joined_by: str


class Identity:
    """The identity in one state folder. `random` gives that many random bytes."""

    def __init__(self, state: Path, random: Callable[[int], bytes] = os.urandom) -> None:
        self._folder = state / "identity"
        self._random = random
        self._counter = self._reserved = 0

    def self(self) -> Self | None:
        """Who this machine was decided to be; None before its first `up`."""
        return self._read("self.json", _self)

    def decide(self, decided: Self) -> None:
        self._write_json(
            "self.json",
            {"name": decided.name, "role": decided.role.value, "settings": dict(decided.settings)},
        )

    def signing_key(self) -> SigningKey:
        """The node's own key; made, durably, when it isn't there yet."""
        return SigningKey(self._made_once("signing.seed", SEED_BYTES))

    def node_key(self) -> bytes:
        """The key under which what is secret is compared; made, durably, when it isn't there yet."""
        return self._made_once("node.key", NODE_KEY_BYTES)

    def next_counter(self) -> int:
        """The number of the next signed statement: never one that was used before, whatever died in between.

        Numbers are reserved in the file, durably, a thousand at a time.
        """
        if self._counter == self._reserved:
            self._counter = self._read("counter", lambda fields: fields.integer("reserved")) or 0
            self._reserved = self._counter + _COUNTERS_AT_ONCE
            self._write_json("counter", {"reserved": self._reserved})
        self._counter += 1
        return self._counter

    def membership(self) -> Membership | None:
        """How to log in; None before enrolment."""
        return self._read("membership.json", _membership)

    def join(self, membership: Membership) -> None:
        self._write_json(
            "membership.json",
            {
                "broker": membership.broker,
                "fingerprints": list(membership.fingerprints),
                "account": membership.account,
                "password": membership.password,
                "queue": membership.queue,
                "joined_by": membership.joined_by,
                "signers": [base64.b64encode(key).decode("ascii") for key in membership.signers],
            },
        )

    def token(self) -> Token | None:
        """The token to join with; None when there is none or it has done its work."""
        data = files.read(self._folder / "token", uid=os.geteuid())
        if data is None:
            return None
        try:
            return parse_token(data.decode("ascii", "replace"))
        except Refused as error:
            raise self._damaged("token", str(error)) from error

    def keep_token(self, token: Token) -> None:
        self._write("token", token.encode().encode("ascii") + b"\n")

    def drop_token(self) -> None:
        """The node's own account has spoken: the token has no more use."""
        files.remove(self._folder / "token", uid=os.geteuid())

    def _made_once(self, name: str, size: int) -> bytes:
        data = files.read(self._folder / name, uid=os.geteuid())
        if data is None:
            data = self._random(size)
            self._write(name, data)
        if len(data) != size:
            raise self._damaged(name, f"it has {len(data)} bytes instead of {size}")
        return data

    def _read(self, name: str, read: Callable[[Fields], T]) -> T | None:
        data = files.read(self._folder / name, uid=os.geteuid())
        if data is None:
            return None
        try:
            return read(Fields(parse_json(data)))
        except (Refused, ValueError) as error:
            raise self._damaged(name, str(error)) from error

    def _damaged(self, name: str, why: str) -> Fatal:
        return Fatal(f"{self._folder / name} is damaged ({why}); put a backup in its place, or {_REMEDIES[name]}")

    def _write_json(self, name: str, value: dict[str, JsonValue]) -> None:
        self._write(name, canonical(value).encode("utf-8") + b"\n")

    def _write(self, name: str, data: bytes) -> None:
        uid, gid = os.geteuid(), os.getegid()
        directories.make(self._folder, mode=0o700, uid=uid, gid=gid)
        files.write(self._folder / name, data, mode=0o600, uid=uid, gid=gid)


def _self(fields: Fields) -> Self:
    return Self(fields.text("name"), Role(fields.text("role")), fields.text_table("settings"))


def _membership(fields: Fields) -> Membership:
    return Membership(
        broker=fields.text("broker"),
        fingerprints=fields.texts("fingerprints"),
        account=fields.text("account"),
        password=fields.text("password"),
        queue=fields.text("queue"),
        signers=fields.base64s("signers"),
        joined_by=fields.text("joined_by"),
    )
