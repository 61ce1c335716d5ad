from __future__ import annotations

import base64
import contextlib
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.resources import (
    Context,
    Declaration,
    Trust,
    check_type,
    encode_declaration,
    expired,
    format_time,
    open_declaration,
    parse_time,
    read_declaration,
)

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=timezone.utc)
PLAIN = {
    "type": "declaration/v1",
    "node": "node-a",
    "serial": 7,
    "issued_at": "2026-01-31T12:00:00Z",
    "resources": [],
    "recovery": [],
}

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TIMES = st.datetimes(timezones=st.just(timezone.utc)).map(lambda moment: moment.replace(microsecond=0))
DECLARATIONS = st.builds(
    Declaration,
    node=TEXT,
    serial=st.integers(1, 2**53 - 1),
    issued_at=TIMES,
    items=st.lists(st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(-9, 9) | TEXT)).map(tuple),
    expires_at=st.none() | TIMES,
    retire=st.booleans(),
    recovery=st.lists(TEXT).map(tuple),
    trust=st.none()
    | st.builds(
        Trust,
        st.lists(st.binary(min_size=32, max_size=32)).map(tuple),
        st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex)).map(tuple),
    ),
)


def read(data: bytes) -> Declaration:
    fields = open_declaration(data)
    check_type(fields)
    return read_declaration(fields)


def written(**change: object) -> bytes:
    body = {**PLAIN, **change}
    return json.dumps({name: value for name, value in body.items() if value is not ...}).encode()


@given(DECLARATIONS)
def test_a_declaration_comes_back(declaration: Declaration) -> None:
    assert read(encode_declaration(declaration)) == declaration


def test_how_a_declaration_is_written() -> None:
    declaration = Declaration(
        node="node-a",
        serial=7,
        issued_at=NOW,
        items=({"kind": "file", "name": "/x", "content": "ä"},),
        expires_at=NOW + timedelta(hours=1),
        retire=True,
        recovery=("file:/x",),
        trust=Trust((b"\x01" * 32,), ("ab" * 32,)),
    )
    assert json.loads(encode_declaration(declaration)) == {
        "type": "declaration/v1",
        "node": "node-a",
        "serial": 7,
        "issued_at": "2026-01-31T12:00:00Z",
        "expires_at": "2026-01-31T13:00:00Z",
        "resources": [{"kind": "file", "name": "/x", "content": "ä"}],
        "retire": True,
        "recovery": ["file:/x"],
        "trust": {"signers": [base64.b64encode(b"\x01" * 32).decode()], "fingerprints": ["ab" * 32]},
    }


def test_what_need_not_be_said_is_left_out() -> None:
    assert json.loads(encode_declaration(Declaration("node-a", 7, NOW, ()))) == PLAIN


def test_an_item_that_is_no_object_is_not_written() -> None:
    with pytest.raises(Refused, match=r"^resources\[0\] is a string"):
        encode_declaration(Declaration("node-a", 7, NOW, ("x",)))


@given(
    st.binary()
    | st.dictionaries(st.sampled_from([*PLAIN, "trust", "retire"]), TEXT | st.integers()).map(
        lambda body: json.dumps(body).encode()
    )
)
def test_any_bytes_are_a_declaration_or_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        read(data)


@pytest.mark.parametrize("kind", ["declaration/v2", "Declaration/v1", "", None, ...])
def test_another_type_is_refused(kind: object) -> None:
    with pytest.raises(Refused, match=r"this is of type .*, not declaration/v1; a newer agent may know it"):
        check_type(open_declaration(written(type=kind)))


def test_a_type_that_is_no_text_is_refused() -> None:
    with pytest.raises(Refused, match=r"declaration.type: is a number"):
        check_type(open_declaration(written(type=1)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not readable JSON"),
        (b"[]", "declaration is a list, not an object"),
        (b"null", "declaration is null, not an object"),
        (written()[:-1] + b',"serial":8}', 'the key "serial" stands twice'),
        (written()[:-1] + b',"seri\\u0061l":8}', 'the key "serial" stands twice'),
        (written()[:-1] + b',"trust":{"signers":[],"signers":[]}}', 'the key "signers" stands twice'),
        (written(resources=[{"a": 1}]).replace(b'"a": 1', b'"a":1,"a":2'), 'the key "a" stands twice'),
        (written().replace(b"7", b"NaN"), "NaN is not a JSON value"),
        (written().replace(b"7", b"7" * 9999), "not readable JSON"),
        (written(resources=...)[:-1] + b',"resources":' + b"[" * 99_999, "nested too deeply"),
        (written(node="\ud800"), "not readable JSON"),
    ],
)
def test_what_is_unparsable_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        open_declaration(data)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"node": ...}, "declaration.node: is missing; it must be a string"),
        ({"node": 1}, "declaration.node: is a number; it must be a string"),
        ({"serial": ...}, "declaration.serial: is missing; it must be a whole number"),
        ({"serial": 0}, "declaration.serial: must be a whole number from 1 to 9007199254740991"),
        ({"serial": -1}, "declaration.serial: must be a whole number from 1 to"),
        ({"serial": 2**53}, "declaration.serial: must be a whole number from 1 to"),
        ({"serial": 7.0}, "declaration.serial: is a number; it must be a whole number"),
        ({"serial": 1e3}, "declaration.serial: is a number; it must be a whole number"),
        ({"serial": "7"}, "declaration.serial: is a string; it must be a whole number"),
        ({"serial": True}, "declaration.serial: is true or false; it must be a whole number"),
        ({"issued_at": ...}, "declaration.issued_at: is missing; it must be a string"),
        ({"issued_at": 1700000000}, "declaration.issued_at: is a number; it must be a string"),
        ({"issued_at": "yesterday"}, 'issued_at: "yesterday" is no RFC 3339 time'),
        ({"expires_at": "never"}, 'expires_at: "never" is no RFC 3339 time'),
        ({"expires_at": ""}, 'expires_at: "" is no RFC 3339 time'),
        ({"expires_at": 0}, "declaration.expires_at: is a number; it must be a string"),
        ({"resources": ...}, "declaration.resources: is missing; it must be a list"),
        ({"resources": None}, "declaration.resources: is missing; it must be a list"),
        ({"resources": {}}, "declaration.resources: is an object; it must be a list"),
        ({"retire": "true"}, "declaration.retire: is a string; it must be true or false"),
        ({"retire": 1}, "declaration.retire: is a number; it must be true or false"),
        ({"recovery": "file:/x"}, "declaration.recovery: is a string; it must be a list"),
        ({"recovery": [1]}, r"declaration.recovery\[0\]: is a number; it must be a string"),
        ({"trust": []}, "declaration.trust is a list, not an object"),
        ({"trust": {"signers": ["AAAA"]}}, "declaration.trust.signers: each is a public key of 32 bytes"),
        ({"trust": {"signers": ["!"]}}, r"declaration.trust.signers\[0\]: \"!\" is not base64"),
        ({"trust": {"signers": [None]}}, r"declaration.trust.signers\[0\]: is null"),
        ({"trust": {"fingerprints": ["ab"]}}, 'declaration.trust.fingerprints: "ab" is no SHA-256 fingerprint'),
        ({"trust": {"signer": []}}, 'declaration.trust.signer: there is no such field here; did you mean "signers"'),
        ({"expire_at": "2026-01-31T12:00:00Z"}, 'declaration.expire_at: .*; did you mean "expires_at"'),
        ({"retires": True}, 'declaration.retires: there is no such field here; did you mean "retire"'),
        ({"resource": []}, 'declaration.resource: there is no such field here; did you mean "resources"'),
        ({"note": None}, "declaration.note: there is no such field here"),
        ({"Serial": 8}, 'declaration.Serial: there is no such field here; did you mean "serial"'),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], why: str) -> None:
    with pytest.raises(Refused, match=why):
        read(written(**change))


def test_what_may_be_absent() -> None:
    declaration = read(written(recovery=..., expires_at=None, retire=None, trust=None))
    assert declaration == Declaration("node-a", 7, NOW, ())


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00:00Z", NOW),
        ("2026-01-31t12:00:00z", NOW),
        ("2026-01-31 12:00:00Z", NOW),
        ("2026-01-31T12:00:00+00:00", NOW),
        ("2026-01-31T12:00:00-00:00", NOW),
        ("2026-01-31T13:30:00+01:30", NOW),
        ("2026-01-30T20:00:00-16:00", NOW),
        ("2026-01-31T12:00:00.5Z", NOW.replace(microsecond=500_000)),
        ("2026-01-31T12:00:00.000001Z", NOW.replace(microsecond=1)),
        ("2026-01-31T12:00:00.123456789Z", NOW.replace(microsecond=123_456)),
        ("2026-01-31T12:00:00.000000000+00:00", NOW),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=timezone.utc)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=timezone.utc)),
    ],
)
def test_how_a_time_is_written(text: str, moment: datetime) -> None:
    read_ = parse_time(text, "here")
    assert read_ == moment
    assert read_.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00Z",
        "2026-1-31T12:00:00Z",
        "20260131T120000Z",
        "2026-W05-6T12:00:00Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00,5Z",
        "2026-01-31T12:00:00+0100",
        "2026-01-31T12:00:00+01",
        "2026-01-31T12:00:00Z\n",
        " 2026-01-31T12:00:00Z",
        "+2026-01-31T12:00:00Z",
        "٢٠٢٦-01-31T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:61Z",
        "2026-02-29T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-00-01T12:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-01-31T12:00:00+24:00",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "1700000000",
    ],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(Refused, match=r"^here: .* is no (RFC 3339 time|time that exists)"):
        parse_time(text, "here")


@given(TIMES)
def test_a_time_comes_back(moment: datetime) -> None:
    assert parse_time(format_time(moment), "here") == moment


@given(st.text(st.sampled_from("0123456789-:TZ+.tz ") | st.characters()))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    with contextlib.suppress(Refused):
        parse_time(text, "here")


def test_another_zones_time_is_written_in_utc() -> None:
    moment = datetime(2026, 1, 31, 13, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=1)))
    assert format_time(moment) == "2026-01-31T12:00:00Z"


def test_expiry() -> None:
    second = timedelta(seconds=1)
    declaration = read(written(expires_at="2026-01-31T12:00:00Z"))
    assert expired(declaration, NOW - second) is None
    assert expired(declaration, NOW) is None
    assert expired(declaration, NOW + second) == second
    assert expired(read(written()), NOW) is None


def test_its_resources_are_read_as_this_machine_does() -> None:
    item = {"kind": "file", "name": "${state}/x", "content": "x", "needs": ["package:nginx"]}
    (resource,) = read(written(resources=[item])).resources(Context(Path("/state")), {"package:nginx"})
    assert resource.id == "file:/state/x"


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ("x", r"^resources\[0\] is a string, not an object"),
        ({"kind": "pakcage", "name": "x"}, r'^resources\[0\].kind: there is no kind "pakcage"; did you mean "package"'),
        ({"kind": "pod", "name": "x"}, r'^resources\[0\].kind: there is no kind "pod"'),
        ({"kind": "directory", "name": "/a", "mod": "1"}, r'^resources\[0\].mod: .*; did you mean "mode"'),
        ({"kind": "directory", "name": "/a", "needs": ["package:b"]}, 'needs "package:b", which is not declared'),
        ({"kind": "file", "name": "/a", "blob": "x"}, r"^resources\[0\].blob: there is no blob"),
        ({"kind": "directory", "name": "/a", "role": "founder"}, "^directory:/a has a role, which only a bundle's"),
        ({"kind": "directory", "name": "/${param.x}"}, r"^resources\[0\].name: nothing here is called \$\{param.x\}"),
    ],
)
def test_a_wrong_resource_refuses_the_whole(item: object, why: str) -> None:
    declaration = read(written(resources=[{"kind": "directory", "name": "/fine"}, item][::-1]))
    with pytest.raises(Refused, match=why):
        declaration.resources(Context(Path("/state")), ())
