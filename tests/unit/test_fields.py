from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Refused
from agent.fields import (
    REQUIRED,
    Fields,
    JsonValue,
    canonical,
    dns_label,
    field_path,
    fingerprint,
    nearest,
    parse_json,
    quoted,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64) + 1, 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_json_comes_back(value: JsonValue) -> None:
    assert parse_json(canonical(value).encode()) == value
    assert parse_json(json.dumps(value).encode()) == value


@given(JSON)
def test_equal_values_have_one_text(value: JsonValue) -> None:
    shuffled = json.loads(json.dumps(value), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert canonical(shuffled) == canonical(value)


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_json_or_refused(data: bytes) -> None:
    try:
        value = parse_json(data)
    except Refused:
        return
    canonical(value).encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not readable JSON"),
        (b"{", "not readable JSON"),
        (b"{}{}", "not readable JSON"),
        (b"{'a':1}", "not readable JSON"),
        (b'{"a":1,}', "not readable JSON"),
        (b'{"a":"\n"}', "not readable JSON"),
        (b"\xff", "not readable JSON"),
        (b"\xef\xbb\xbf{}", "not readable JSON"),
        (b"\x00", "not readable JSON"),
        ("{}".encode("utf-16"), "not readable JSON"),
        (b'"\\ud800"', "not readable JSON"),
        (b'{"\\uDFFF":1}', "not readable JSON"),
        (b"NaN", "NaN is not a JSON value"),
        (b"[-Infinity]", "-Infinity is not a JSON value"),
        (b"9" * 10_000, "not readable JSON"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 1_000_000, "nested too deeply"),
        (b'{"a":1,"a":1}', 'the key "a" stands twice'),
        (b'[{"x":{"a":1,"\\u0061":2}}]', 'the key "a" stands twice'),
    ],
)
def test_what_is_not_strictly_json_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        parse_json(data)


def test_a_pair_of_escapes_spells_one_character() -> None:
    assert parse_json(b'"\\ud83d\\ude00 \\\\ud800"') == "\U0001f600 \\ud800"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä", '"plain ä"'),
        ('a"b\\', '"a\\"b\\\\"'),
        ("a\nb", '"a\\nb"'),
        ("\x1b[31m", '"\\u001b[31m"'),
        ("\x7f\x9b", '"\\x7f\\x9b"'),
        ("a\u202eb\u2028", '"a\\u202eb\\u2028"'),
        ("\ud800", '"\\ud800"'),
    ],
)
def test_what_somebody_else_wrote_is_shown_printably(text: str, shown: str) -> None:
    assert quoted(text) == shown


@given(st.text() | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl"])) | st.just("x" * 10_000))
def test_what_is_shown_is_short_and_printable(text: str) -> None:
    assert len(quoted(text)) <= 130
    assert quoted(text).isprintable()


def test_the_nearest_name_is_a_hint() -> None:
    assert nearest("prots", ["ports", "port"]) == '; did you mean "ports"?'
    assert nearest("entirely", ["ports"]) == ""
    assert nearest("x", []) == ""


@pytest.mark.parametrize("text", ["a", "0", "node-a", "a" * 63, "1--2"])
def test_a_dns_label(text: str) -> None:
    assert dns_label(text, "the name") == text


@pytest.mark.parametrize(
    "text", ["", "a" * 64, "-a", "a-", "A", "a.b", "a_b", "ä", "a\n", "a b", "a/b", "..", "٣", "a\0", "*"]
)
def test_no_dns_label(text: str) -> None:
    with pytest.raises(Refused, match=r"the name .* is no DNS label: use 1 to 63"):
        dns_label(text, "the name")


@pytest.mark.parametrize("text", ["ab" * 32, "AB" * 32, ":".join(["aB"] * 32)])
def test_a_fingerprint_has_one_form_inside(text: str) -> None:
    assert fingerprint(text, "pin") == "ab" * 32


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "xy" * 32, "ab" * 32 + "\n", "sha256:" + "ab" * 32])
def test_no_fingerprint(text: str) -> None:
    with pytest.raises(Refused, match=r"pin: .* is no SHA-256 fingerprint"):
        fingerprint(text, "pin")


def test_a_fields_place() -> None:
    assert field_path("", "name") == "name"
    assert field_path("resource[2]", "name") == "resource[2].name"
    assert field_path("x", "a b\x1b") == 'x."a b\\u001b"'


@pytest.mark.parametrize("value", [None, [], "x", 1, True])
def test_what_has_no_fields_is_refused(value: object) -> None:
    with pytest.raises(Refused, match=r"^list\[0\] is .*, not an object with named fields"):
        Fields(value, "list[0]")


GETTERS: list[tuple[Callable[[Fields, object], object], str, object]] = [
    (lambda fields, default: fields.text("x", default), "a string", "text"),
    (lambda fields, default: fields.flag("x", default), "true or false", False),
    (lambda fields, default: fields.integer("x", default), "a whole number", 0),
    (lambda fields, default: fields.texts("x", default), "a list", []),
    (lambda fields, default: fields.integers("x", default), "a list", []),
    (lambda fields, default: fields.base64s("x", default), "a list", []),
]


@pytest.mark.parametrize(("get", "words", "good"), GETTERS)
def test_a_getter_takes_its_type_only(get: Callable[[Fields, object], object], words: str, good: object) -> None:
    values: list[object] = ["text", True, False, 1, 0, 1.0, [], {}, datetime.date(2026, 1, 1)]
    for value in values:
        if type(value) is type(good):
            get(Fields({"x": value}), REQUIRED)
        else:
            with pytest.raises(Refused, match=f"^x: is .*; it must be {words}$"):
                get(Fields({"x": value}), REQUIRED)


@pytest.mark.parametrize(("get", "words", "good"), GETTERS)
def test_absent_and_null_are_the_default_or_missing(
    get: Callable[[Fields, object], object], words: str, good: object
) -> None:
    for given_ in ({}, {"x": None}):
        default = tuple(good) if isinstance(good, list) else good
        assert get(Fields(given_), default) == default
        with pytest.raises(Refused, match=f"^here.x: is missing; it must be {words}$"):
            get(Fields(given_, "here"), REQUIRED)


def test_a_missing_field_names_what_may_be_it() -> None:
    with pytest.raises(Refused, match='command: is missing; it must be a list; is "comand" it, misspelt\\?'):
        Fields({"comand": []}).texts("command")


@pytest.mark.parametrize("value", [-1, 0, 11, 2**53, pytest.param(16**5000, id="huge")])
def test_an_integer_has_bounds(value: int) -> None:
    with pytest.raises(Refused, match=r"^x: must be a whole number from 1 to 10$"):
        Fields({"x": value}).integer("x", least=1, most=10)


def test_an_integer_at_its_bounds() -> None:
    assert Fields({"x": 1}).integer("x", least=1, most=10) == 1
    assert Fields({"x": 10}).integer("x", least=1, most=10) == 10
    assert Fields({"x": 2**53 - 1}).integer("x") == 2**53 - 1


@given(st.binary())
def test_bytes_travel_as_base64(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    assert Fields({"x": text}).base64("x") == data
    assert Fields({"x": [text]}).base64s("x") == (data,)


@pytest.mark.parametrize(
    "text",
    [
        "A",
        "AA",
        "AAA",
        "AA=",
        "A===",
        "AAAA=",
        "AAAA====",
        "AB==",
        "AAB=",
        " AAAA",
        "AAAA\n",
        "AA==AA==",
        "=",
        "-_-_",
        "äAAA",
    ],
)
def test_base64_is_read_strictly(text: str) -> None:
    with pytest.raises(Refused, match=r"^x: .* is not base64 with padding"):
        Fields({"x": text}).base64("x")
    with pytest.raises(Refused, match=r"^x\[1\]: .* is not base64 with padding"):
        Fields({"x": ["AAAA", text]}).base64s("x")


def test_absent_bytes_are_empty() -> None:
    assert Fields({}).base64("x") == Fields({"x": None}).base64("x") == b""


def test_a_lists_items_are_named_by_their_place() -> None:
    with pytest.raises(Refused, match=r"^here\.x\[1\]: is a number; it must be a string"):
        Fields({"x": ["a", 1]}, "here").texts("x")
    with pytest.raises(Refused, match=r"^here\.x\[0\]: is null; it must be a whole number"):
        Fields({"x": [None]}, "here").integers("x")


def test_a_table_inside() -> None:
    inner = Fields({"t": {"a": 1}}, "here").table("t")
    assert inner is not None
    with pytest.raises(Refused, match=r"^here\.t\.a: is a number"):
        inner.text("a")
    assert Fields({}).table("t") is None
    assert Fields({}).text_table("t") == {}
    assert Fields({"t": {"a": "b"}}).text_table("t") == {"a": "b"}


def test_what_nobody_asked_for_is_refused_with_the_nearest() -> None:
    fields = Fields({"ports": [], "prots": []}, "here")
    fields.texts("ports")
    with pytest.raises(Refused, match=r'^here.prots: there is no such field here; did you mean "ports"'):
        fields.finish()


def test_null_is_no_excuse_for_an_unknown_field() -> None:
    with pytest.raises(Refused, match=r"^x: there is no such field here$"):
        Fields({"x": None}).finish()


def test_asking_whether_it_is_there_is_asking() -> None:
    fields = Fields({"x": None, "y": 1})
    assert "x" not in fields
    assert "y" in fields
    fields.finish()


@given(st.dictionaries(TEXT, JSON))
def test_values_are_the_whole(value: dict[str, JsonValue]) -> None:
    fields = Fields(value)
    assert fields.values() == value
    fields.finish()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("inf"), "x: is a number beyond"),
        (float("nan"), "x: is a number beyond"),
        (2**64, "x: is a number beyond"),
        pytest.param(16**5000, "x: is a number beyond", id="huge"),
        ([[-(2**64)]], r"x\[0\]\[0\]: is a number beyond"),
        (datetime.date(2026, 1, 1), "x: is a date, which JSON cannot hold"),
        ({"y": datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)}, "x.y: is a datetime, which JSON"),
    ],
)
def test_what_toml_can_say_and_json_cannot_is_refused(value: object, why: str) -> None:
    with pytest.raises(Refused, match=why):
        Fields({"x": value}).values()


@pytest.mark.parametrize(("depth", "fine"), [(60, True), (70, False), (900, False), (100_000, False)])
def test_what_is_too_deep_is_refused(depth: int, fine: bool) -> None:
    lists: object = 1
    tables: object = 1
    for _ in range(depth):
        lists, tables = [lists], {"y": tables}
    for value in (lists, tables):
        if fine:
            assert Fields({"x": value}).values() == {"x": value}
        else:
            with pytest.raises(Refused, match="nested too deeply"):
                Fields({"x": value}).values()
