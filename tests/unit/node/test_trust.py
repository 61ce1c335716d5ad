from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.envelope import SigningKey
from agent.errors import Refused
from agent.node.ledger import open_ledger
from agent.node.trust import Acceptance, Known, Refusal, judge, reread
from agent.resources import Context, Origin, Resource, parse_list
from agent.wire import Signed

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=timezone.utc)
STATE = Path("/var/lib/mesh-agent")
OURS, NEXT, STRANGERS = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
CARRIED = parse_list(
    [
        {"kind": "file", "name": "/etc/carried.conf", "content": ""},
        {"kind": "directory", "name": "/srv/shared", "mode": "0750"},
        {"kind": "package", "name": "openssl"},
        {"kind": "secret", "name": "broker"},
        {"kind": "reserved", "name": "sshd", "ports": ["22"]},
    ],
    Context(STATE),
)


def impossible(resources: Sequence[Resource]) -> str | None:
    hopeless = [one.id for one in resources if one.name == "hopeless"]
    return f"{hopeless[0]} can never be made on this machine" if hopeless else None


@dataclass
class Draft:
    """A message in the making, good unless a fault is put into it."""

    fields: dict[str, object] = field(
        default_factory=lambda: {
            "type": "declaration/v1",
            "node": "a",
            "serial": 6,
            "issued_at": "2026-01-31T11:59:00Z",
            "resources": [{"kind": "file", "name": "/etc/good.conf", "content": "x"}],
            "recovery": ["file:/etc/good.conf"],
        }
    )
    spoil: Callable[[bytes], bytes] = bytes
    key: SigningKey = OURS
    alter_signature: Callable[[bytes], bytes] = bytes
    envelope: bytes | None = None

    def add(self, **resource: object) -> None:
        resources = self.fields["resources"]
        assert isinstance(resources, list)
        resources.append(resource)

    @property
    def data(self) -> bytes:
        return self.spoil(json.dumps(self.fields).encode())

    @property
    def body(self) -> bytes:
        if self.envelope is not None:
            return self.envelope
        return Signed(self.data, self.alter_signature(self.key.sign(self.data))).encode()


ACCEPTED = Draft()
ACCEPTED.fields["serial"] = 5
KNOWN = Known(
    node="a",
    signers=(NEXT.public, OURS.public),
    serial=5,
    accepted=ACCEPTED.data,
    assigned=("file:/etc/good.conf", "service:old"),
    carried=CARRIED,
    context=Context(STATE),
    impossible=impossible,
)


@dataclass(frozen=True)
class Fault:
    """One way to break a rule. `rule` is its place in the order; `serial` what the refusal tells."""

    rule: int
    why: str
    put: Callable[[Draft], None]
    serial: int | None = 6


def enveloped(body: object) -> Callable[[Draft], None]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda draft: setattr(draft, "envelope", data)


def spoiled(spoil: Callable[[bytes], bytes]) -> Callable[[Draft], None]:
    return lambda draft: setattr(draft, "spoil", spoil)


def with_field(name: str, value: object) -> Callable[[Draft], None]:
    return lambda draft: draft.fields.update({name: value})


def without(name: str) -> Callable[[Draft], None]:
    def put(draft: Draft) -> None:
        del draft.fields[name]

    return put


def adding(**resource: object) -> Callable[[Draft], None]:
    return lambda draft: draft.add(**resource)


def signed_by_a_stranger(draft: Draft) -> None:
    draft.key = STRANGERS


def altered(change: Callable[[bytes], bytes]) -> Callable[[Draft], None]:
    return lambda draft: setattr(draft, "alter_signature", change)


def same_serial(draft: Draft) -> None:
    draft.fields["serial"] = 5
    draft.fields["issued_at"] = "2026-01-31T11:59:01Z"


def emptied(draft: Draft) -> None:
    draft.fields["resources"] = []


TWO = base64.b64encode(b"x" * 64).decode()
ENVELOPE, SIGNATURE, READABLE, TYPE, NODE, LOWER, SAME, HEAD, EXPIRED, INVALID, EMPTY, CLAIMED, IMPOSSIBLE = range(13)

# The first of each rule stands for it where two faults come together.
FAULTS = {
    "nothing": Fault(ENVELOPE, "the envelope is malformed: .*not readable JSON", enveloped(b""), None),
    "no object": Fault(ENVELOPE, "the envelope is malformed: .*not an object", enveloped([]), None),
    "no base64": Fault(
        ENVELOPE,
        "the envelope is malformed: envelope.declaration: .*base64",
        enveloped({"declaration": "e30", "signature": TWO}),
        None,
    ),
    "a key twice in the envelope": Fault(
        ENVELOPE,
        "the envelope is malformed: the key .signature. stands twice",
        enveloped(b'{"declaration": "e30=", "signature": "", "signature": ""}'),
        None,
    ),
    "declaration of another type": Fault(
        ENVELOPE, "the envelope is malformed: .*must be a string", enveloped({"declaration": {}}), None
    ),
    "null declaration": Fault(
        ENVELOPE,
        "the envelope is malformed: it holds no declaration",
        enveloped({"declaration": None, "signature": None}),
        None,
    ),
    "a stranger's signature": Fault(SIGNATURE, "does not verify under any signer", signed_by_a_stranger, None),
    "63 bytes": Fault(SIGNATURE, "the signature has 63 bytes, not 64", altered(lambda one: one[1:]), None),
    "65 bytes": Fault(SIGNATURE, "the signature has 65 bytes, not 64", altered(lambda one: one + b"x"), None),
    "no signature": Fault(SIGNATURE, "the signature has 0 bytes, not 64", altered(lambda one: b""), None),
    "one bit of the signature": Fault(
        SIGNATURE, "does not verify", altered(lambda one: bytes([one[0] ^ 1]) + one[1:]), None
    ),
    "a signature of zeros": Fault(SIGNATURE, "does not verify", altered(lambda one: bytes(64)), None),
    "a key twice": Fault(
        READABLE, 'the key "node" stands twice', spoiled(lambda data: data[:-1] + b', "node": "a"}'), None
    ),
    "a key twice, deep inside": Fault(
        READABLE, 'the key "m" stands twice', spoiled(lambda data: data[:-1] + b', "x": [{"m": 1, "m": 1}]}'), None
    ),
    "no JSON": Fault(READABLE, "not readable JSON", spoiled(lambda data: data[:-1]), None),
    "not UTF-8": Fault(READABLE, "not readable JSON", spoiled(lambda data: data[:-1] + b', "x": "\xff"}'), None),
    "NaN": Fault(READABLE, "NaN is not a JSON value", spoiled(lambda data: data[:-1] + b', "x": NaN}'), None),
    "nested too deeply": Fault(READABLE, "nested too deeply", spoiled(lambda data: b"[" * 100_000), None),
    "a declaration that is a list": Fault(READABLE, "is a list, not an object", spoiled(lambda data: b"[]"), None),
    "another version": Fault(
        TYPE, "of type .declaration/v2., not declaration/v1", with_field("type", "declaration/v2")
    ),
    "no type": Fault(TYPE, 'of type "", not declaration/v1', without("type")),
    "a type that is a number": Fault(TYPE, "declaration.type: is a number", with_field("type", 1)),
    "another node's": Fault(NODE, 'for node "ab", and this is "a"', with_field("node", "ab")),
    "no node": Fault(NODE, "declaration.node: is missing", without("node")),
    "a lower serial": Fault(LOWER, "serial 4 is lower than 5", with_field("serial", 4), 4),
    "no serial": Fault(LOWER, "declaration.serial: is missing", without("serial"), None),
    "serial zero": Fault(LOWER, "from 1 to", with_field("serial", 0), None),
    "a serial beyond 2^53": Fault(LOWER, "from 1 to 9007199254740991", with_field("serial", 2**53), None),
    "a serial with a fraction": Fault(LOWER, "must be a whole number", with_field("serial", 6.0), None),
    "a serial that is true": Fault(LOWER, "must be a whole number", with_field("serial", True), None),
    "same serial, other bytes": Fault(SAME, "serial 5 was accepted before with other content", same_serial, 5),
    "an unknown field": Fault(
        HEAD, 'declaration.expires: there is no such field here; did you mean "expires_at"', with_field("expires", 1)
    ),
    "retire that is a string": Fault(HEAD, "declaration.retire: .*true or false", with_field("retire", "yes")),
    "no resources": Fault(HEAD, "declaration.resources: is missing", without("resources")),
    "resources that are an object": Fault(HEAD, "must be a list", with_field("resources", {})),
    "no time of issue": Fault(HEAD, "declaration.issued_at: is missing", without("issued_at")),
    "an expiry without a zone": Fault(HEAD, "expires_at: .*RFC 3339", with_field("expires_at", "2027-01-31T12:00:00")),
    "a recovery copy of numbers": Fault(HEAD, r"declaration.recovery\[0\]", with_field("recovery", [1])),
    "a signer of two bytes": Fault(HEAD, "public key of 32 bytes", with_field("trust", {"signers": ["AAA="]})),
    "a pin that is none": Fault(HEAD, "no SHA-256 fingerprint", with_field("trust", {"fingerprints": ["ab"]})),
    "an unknown field of trust": Fault(HEAD, 'did you mean "signers"', with_field("trust", {"signer": []})),
    "expired": Fault(
        EXPIRED, "it expired 60 s ago by this machine's clock", with_field("expires_at", "2026-01-31T11:59:00Z")
    ),
    "a misspelt field": Fault(
        INVALID,
        r'resources\[\d\].contents: there is no such field here; did you mean "content"',
        adding(kind="file", name="/etc/x", content="", contents=""),
    ),
    "an unknown kind": Fault(INVALID, r'there is no kind "fil".*"file"', adding(kind="fil", name="/etc/x")),
    "a relative path": Fault(INVALID, "no absolute, normal path", adding(kind="file", name="etc/x", content="")),
    "no port": Fault(INVALID, "no port number", adding(kind="reserved", name="x", ports=["65536"])),
    "a need that isn't there": Fault(
        INVALID, "needs .*not declared before it", adding(kind="file", name="/etc/x", content="", needs=["package:x"])
    ),
    "a role": Fault(INVALID, "has a role", adding(kind="file", name="/etc/x", content="", role="founder")),
    "a blob": Fault(INVALID, "there is no blob", adding(kind="file", name="/etc/x", blob="x")),
    "a secret of the other origin": Fault(
        INVALID,
        "no secret:broker is declared before it",
        adding(kind="file", name="/etc/x", content="${secret.broker}", template=True),
    ),
    "an empty list": Fault(EMPTY, "would remove 2 assigned resources; .*retire = true", emptied),
    "a carried id": Fault(CLAIMED, "declared twice", adding(kind="file", name="/etc/carried.conf", content="")),
    "a carried port": Fault(
        CLAIMED,
        "reserved:x wants port 127.0.0.1:22/tcp, which reserved:sshd holds",
        adding(kind="reserved", name="x", ports=["127.0.0.1:22"]),
    ),
    "below a carried file": Fault(
        CLAIMED, "lies below what file:/etc/carried.conf", adding(kind="file", name="/etc/carried.conf/x", content="")
    ),
    "a carried secret": Fault(CLAIMED, "secret:broker is declared twice", adding(kind="secret", name="broker")),
    "a shared directory, otherwise": Fault(
        CLAIMED, "asks for something else there", adding(kind="directory", name="/srv/shared", mode="0755")
    ),
    "one id twice": Fault(CLAIMED, "declared twice", adding(kind="file", name="/etc/good.conf", content="")),
    "one path twice": Fault(
        CLAIMED, "wants the path /etc/good.conf, which", adding(kind="directory", name="/etc/good.conf")
    ),
    "the agent's folder": Fault(
        CLAIMED, "lies in the agent's own folder", adding(kind="file", name=f"{STATE}/ledger.db", content="")
    ),
    "the control plane's file": Fault(
        CLAIMED,
        "lies in the agent's own folder",
        adding(kind="file", name=f"{STATE}/control/control.toml", content=""),
    ),
    "what can never be": Fault(
        IMPOSSIBLE, "package:hopeless can never be made", adding(kind="package", name="hopeless")
    ),
}
FIRST = {fault.rule: fault for fault in reversed(FAULTS.values())}
# Both are said by the same field, so that one message can't have both.
EXCLUSIVE = {(LOWER, SAME), (INVALID, EMPTY), (EMPTY, CLAIMED), (EMPTY, IMPOSSIBLE)}


def drafted(*faults: Fault) -> bytes:
    draft = Draft()
    for fault in faults:
        fault.put(draft)
    return draft.body


def accepted(body: bytes, known: Known = KNOWN, now: datetime = NOW) -> Acceptance:
    verdict = judge(body, known, now)
    assert isinstance(verdict, Acceptance), verdict
    return verdict


def refused(body: bytes, known: Known = KNOWN, now: datetime = NOW) -> Refusal:
    verdict = judge(body, known, now)
    assert isinstance(verdict, Refusal), verdict
    return verdict


def test_what_is_in_order_is_accepted_whole() -> None:
    draft = Draft()
    verdict = accepted(draft.body)
    assert verdict.data == draft.data
    assert verdict.signature == OURS.sign(draft.data)
    assert verdict.signer == OURS.public
    assert verdict.declaration.serial == 6
    assert verdict.declaration.recovery == ("file:/etc/good.conf",)
    assert [one.id for one in verdict.resources] == ["file:/etc/good.conf"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_is_refused_in_its_own_words(fault: Fault) -> None:
    refusal = refused(drafted(fault))
    assert re.search(fault.why, refusal.why)
    assert refusal.serial == fault.serial


@pytest.mark.parametrize(
    ("earlier", "later"),
    [pair for pair in itertools.combinations(range(13), 2) if pair not in EXCLUSIVE],
)
def test_of_two_faults_the_earlier_rule_speaks(earlier: int, later: int) -> None:
    alone = refused(drafted(FIRST[earlier]))
    assert alone.why != refused(drafted(FIRST[later])).why
    assert refused(drafted(FIRST[earlier], FIRST[later])).why == alone.why
    assert re.search(FIRST[earlier].why, refused(drafted(FIRST[later], FIRST[earlier])).why)


def test_a_refusal_changes_nothing_on_disk(ground: Path) -> None:
    ledger = open_ledger(ground, lambda: 1.0, write=True)
    first = Draft()
    first.fields["serial"] = 5
    ledger.accept(5, first.data, OURS.sign(first.data), OURS.public, ["service:old"], None)
    ledger.apply(Origin.CARRIED, CARRIED[0], 1, found=True, stamp="s")
    ledger.apply(Origin.ASSIGNED, accepted(first.body).resources[0], 1, found=False, stamp="s")
    before = _digest(ground)
    for fault in FAULTS.values():
        stored = ledger.accepted()
        assert stored is not None
        known = replace(
            KNOWN, serial=stored.serial, accepted=stored.data, assigned=ledger.assigned_or_recovered(), carried=CARRIED
        )
        refused(drafted(fault), known)
    assert _digest(ground) == before
    ledger.close()


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.name != "ledger.db-shm":  # says only who reads
            digest.update(f"{path} {path.stat().st_mode}".encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


def test_the_same_serial_with_the_same_bytes_is_accepted_again() -> None:
    assert accepted(ACCEPTED.body).declaration.serial == 5
    # By another of the trusted signers, too: what counts are the bytes.
    ours = Signed(ACCEPTED.data, NEXT.sign(ACCEPTED.data)).encode()
    assert accepted(ours).signer == NEXT.public


def test_before_any_was_accepted_every_serial_is_new() -> None:
    draft = Draft()
    draft.fields["serial"] = 1
    assert accepted(draft.body, replace(KNOWN, serial=0, accepted=b"")).declaration.serial == 1
    # After a re-join that resets the floor the old bytes are still there; they are no reason to refuse.
    assert accepted(ACCEPTED.body, replace(KNOWN, serial=0)).declaration.serial == 5


@pytest.mark.parametrize("signers", [(), (STRANGERS.public,), (b"",), (b"x" * 32,), (b"\xff" * 32,)])
def test_no_trusted_signer_no_acceptance(signers: tuple[bytes, ...]) -> None:
    assert "does not verify" in refused(Draft().body, replace(KNOWN, signers=signers)).why


def test_whatever_was_changed_under_way_is_refused() -> None:
    data = Draft().data
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert "does not verify" in refused(Signed(changed, OURS.sign(data)).encode()).why


def test_an_expiry_is_up_to_its_own_second() -> None:
    draft = Draft()
    draft.fields["expires_at"] = "2026-01-31T13:00:00+01:00"
    accepted(draft.body)
    assert "expired 1 s ago" in refused(draft.body, now=NOW + timedelta(seconds=1)).why


def test_an_empty_list_needs_retire_only_where_it_would_remove() -> None:
    draft = Draft()
    emptied(draft)
    assert accepted(draft.body, replace(KNOWN, assigned=())).resources == ()
    draft.fields["retire"] = False
    assert "retire = true" in refused(draft.body).why
    draft.fields["retire"] = True
    assert accepted(draft.body).declaration.retire


def test_directories_and_packages_may_be_shared_in_the_same_words() -> None:
    draft = Draft()
    draft.add(kind="directory", name="/srv/shared", mode="0750")
    draft.add(kind="package", name="openssl")
    draft.add(kind="file", name="/srv/shared/x", content="", needs=["package:openssl"])
    assert len(accepted(draft.body).resources) == 4


def test_a_list_may_take_over_what_the_one_before_it_held() -> None:
    draft = Draft()
    draft.fields["resources"] = [{"kind": "directory", "name": "/etc/good.conf"}]
    accepted(draft.body)


FOREIGN = rb"""
{ "recovery" : [ "caf\u00e9:\/x", "file:/etc/\ud83d\ude00" ],
  "trust": {"fingerprints": ["AA:%s"], "signers": ["%s"]},
  "resources":[ {"content":"\u003credis\u003e \u0026 co\n", "name":"\/etc\/a.conf","kind":"file"} ] ,
  "expires_at":"2026-02-01T00:00:00.123456789-02:30", "retire":null,
	"issued_at" : "2026-01-31t11:59:00z",
  "serial":6, "node":"a","type":"declaration/v1"
}
""" % (b":".join([b"bB"] * 31), base64.b64encode(NEXT.public))


def test_a_declaration_of_another_implementations_making() -> None:
    verdict = accepted(Signed(FOREIGN, OURS.sign(FOREIGN)).encode())
    assert verdict.data == FOREIGN
    declaration = verdict.declaration
    assert declaration.recovery == ("café:/x", "file:/etc/😀")
    assert declaration.expires_at == datetime(2026, 2, 1, 2, 30, 0, 123456, tzinfo=timezone.utc)
    assert not declaration.retire
    assert declaration.trust is not None
    assert declaration.trust.signers == (NEXT.public,)
    assert declaration.trust.fingerprints == ("aa" + "bb" * 31,)
    assert verdict.resources[0].id == "file:/etc/a.conf"
    assert "<redis> & co" in verdict.resources[0].source


def test_an_envelope_may_hold_what_a_newer_peer_adds() -> None:
    body = json.loads(Draft().body)
    accepted(json.dumps({**body, "key_id": 7}, indent=2).encode())


def test_a_mistake_of_our_own_is_a_refusal_too() -> None:
    def break_down(resources: Sequence[Resource]) -> str | None:
        raise ZeroDivisionError

    refusal = refused(Draft().body, replace(KNOWN, impossible=break_down))
    assert "an error of the agent's own (ZeroDivisionError" in refusal.why
    assert refusal.serial == 6


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(body: bytes) -> None:
    assert refused(body).serial is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["declaration", "signature", "x"]), JSON))
def test_arbitrary_envelopes_are_refused(envelope: dict[str, object]) -> None:
    refused(json.dumps(envelope).encode("utf-8", "surrogatepass"))


@given(JSON)
def test_arbitrary_signed_json_is_judged(value: object) -> None:
    data = json.dumps(value).encode("utf-8", "surrogatepass")
    refused(Signed(data, OURS.sign(data)).encode())


FIELDS = st.sampled_from(
    ["type", "node", "serial", "issued_at", "expires_at", "resources", "retire", "recovery", "trust", "more"]
)
RESOURCE_FIELDS = st.sampled_from(
    ["kind", "name", "needs", "role", "mode", "owner", "content", "template", "blob", "ports", "command", "ready"]
)
RESOURCE_VALUES = JSON | st.sampled_from(
    ["file", "service", "reserved", "secret", "/etc/x", "0644", "${state}", "${secret.x}", "$${", "${", ["22/udp"]]
)


@given(
    st.dictionaries(FIELDS, JSON, max_size=2),
    st.lists(st.dictionaries(RESOURCE_FIELDS, RESOURCE_VALUES, max_size=6), max_size=3),
)
def test_a_declaration_with_anything_in_it_is_accepted_or_refused(
    changes: dict[str, object], resources: list[dict[str, object]]
) -> None:
    draft = Draft()
    draft.fields["resources"] = resources
    draft.fields.update(changes)
    verdict = judge(draft.body, KNOWN, NOW)
    if isinstance(verdict, Refusal):
        assert "error of the agent's own" not in verdict.why
    else:
        assert verdict.data == draft.data


def test_what_was_accepted_is_read_again_under_the_key_that_verified_it() -> None:
    draft = Draft()
    draft.fields["expires_at"] = "2026-01-31T12:00:01Z"
    draft.add(kind="service", name="web", command=["/bin/true"], needs=["package:openssl", "file:/etc/good.conf"])
    verdict = accepted(draft.body)
    # Neither the clock, nor who is trusted now, nor what is carried by now is asked.
    again = reread(verdict.data, verdict.signature, verdict.signer, STATE)
    assert again == verdict.resources
    assert again[1].needs == ("package:openssl", "file:/etc/good.conf")


@pytest.mark.parametrize("part", ["data", "signature", "signer"])
def test_what_was_changed_on_disk_is_not_read_again(part: str) -> None:
    verdict = accepted(Draft().body)
    parts = {"data": verdict.data, "signature": verdict.signature, "signer": verdict.signer}
    for at in range(len(parts[part])):
        changed = {**parts, part: parts[part][:at] + bytes([parts[part][at] ^ 1]) + parts[part][at + 1 :]}
        with pytest.raises(Refused, match="no longer carries its signature; nothing of it is applied"):
            reread(state=STATE, **changed)
