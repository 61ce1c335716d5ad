"""Reading JSON and TOML objects: every value is asked for by name and type, once, at the edge.

Duplicate keys, NaN, halves of characters and anything that is not UTF-8 JSON are refused: what is read here
can be written again. What an error names is the path to the field, as a person would write it
(`resources[2].ports[0]`); text that somebody else wrote is shown there without what a terminal obeys.
"""

from __future__ import annotations

import base64
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, Union

from agent.errors import Refused

JsonValue = Union[None, bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]"]
T = TypeVar("T")

# A getter's default that stands for none: the field must be there.
REQUIRED = object()

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_BARE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Far more than any message has, far less than Python's own recursion bears.
_DEEPEST = 64


def parse_json(data: bytes) -> JsonValue:
    """Parse one JSON text (RFC 8259), strictly: UTF-8, no duplicate keys, no NaN. Refused when it is not."""
    try:
        text = data.decode("utf-8")
        value: JsonValue = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        if "\\u" in text:  # an escape can spell half a character, which no encoder writes again
            canonical(value).encode("utf-8")
    except RecursionError as error:
        raise Refused("this is not readable JSON: it is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both ValueErrors
        raise Refused(f"this is not readable JSON: {error}") from error
    return value


def canonical(value: JsonValue) -> str:
    """One JSON text for one value: sorted keys, no blanks, so that equal values have equal digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in found:
            raise Refused(f"the key {quoted(key)} stands twice in one object")
        found[key] = value
    return found


def _refuse_constant(name: str) -> JsonValue:
    raise Refused(f"{name} is not a JSON value")


def quoted(text: str) -> str:
    """A short, printable form of text that somebody else wrote, for an error message."""
    shown = json.dumps(text[:120], ensure_ascii=False)
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in shown)
    return shown if len(text) <= 120 and len(shown) <= 120 else shown[:117] + '…"'


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint `; did you mean "x"?` for a misspelt name, or nothing."""
    close = _closest(name, known)
    return f"; did you mean {quoted(close)}?" if close else ""


def _closest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name[:200], sorted(known), 1, 0.6)), None)


def dns_label(text: str, what: str) -> str:
    """A lower-case DNS label (RFC 1123, section 2.1: 1 to 63 letters, digits, inner hyphens), or Refused."""
    if not _LABEL.fullmatch(text):
        raise Refused(
            f"{what} {quoted(text)} is no DNS label: use 1 to 63 lower-case letters, digits and hyphens, "
            "with no hyphen at either end"
        )
    return text


def fingerprint(text: str, where: str) -> str:
    """A certificate's SHA-256 as 64 lower-case hex digits; openssl's capitals and colons are read too."""
    digits = text.replace(":", "").lower()
    if not _FINGERPRINT.fullmatch(digits):
        raise Refused(f"{where}: {quoted(text)} is no SHA-256 fingerprint of 64 hexadecimal digits")
    return digits


def field_path(where: str, name: str) -> str:
    """The place of a field of the object at `where`, for a message."""
    shown = name if _BARE_NAME.fullmatch(name) else quoted(name)
    return f"{where}.{shown}" if where else shown


class Fields:
    """One object being read. Each getter takes its field; `finish` refuses what nobody asked for.

    A getter without a default demands its field. null is as good as absent: Go writes it for an empty value.
    """

    def __init__(self, value: object, where: str = "") -> None:
        if not isinstance(value, Mapping):
            raise Refused(f"{where or 'this'} is {_type_name(value)}, not an object with named fields")
        self.where = where
        self._values: Mapping[str, object] = value
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self.raw(name) is not None

    def path(self, name: str) -> str:
        """The field's place, for a message."""
        return field_path(self.where, name)

    def wrong(self, name: str, why: str) -> Refused:
        """A refusal that names the field."""
        return Refused(f"{self.path(name)}: {why}")

    def raw(self, name: str) -> object:
        """The value as it stands; None when it is absent."""
        self._asked.add(name)
        return self._values.get(name)

    def text(self, name: str, default: str | object = REQUIRED) -> str:
        return self._take(name, str, "a string", default)

    def flag(self, name: str, default: bool | object = REQUIRED) -> bool:
        return self._take(name, bool, "true or false", default)

    def integer(self, name: str, default: int | object = REQUIRED, *, least: int = 0, most: int = 2**53 - 1) -> int:
        value = self._take(name, int, "a whole number", default)
        if not least <= value <= most:
            raise self.wrong(name, f"must be a whole number from {least} to {most}")
        return value

    def base64(self, name: str) -> bytes:
        """Standard base64 with padding, strictly; absent and null are empty bytes."""
        return _base64(self.text(name, ""), self.path(name))

    def base64s(self, name: str, default: tuple[bytes, ...] | object = REQUIRED) -> tuple[bytes, ...]:
        """A list of byte strings in base64."""
        return self.each(name, default, lambda value, where: _base64(_expect(value, str, "a string", where), where))

    def texts(self, name: str, default: tuple[str, ...] | object = REQUIRED) -> tuple[str, ...]:
        """A list of strings."""
        return self.each(name, default, lambda value, where: _expect(value, str, "a string", where))

    def integers(self, name: str, default: tuple[int, ...] | object = REQUIRED) -> tuple[int, ...]:
        """A list of whole numbers."""
        return self.each(name, default, lambda value, where: _expect(value, int, "a whole number", where))

    def each(self, name: str, default: tuple[T, ...] | object, read: Callable[[object, str], T]) -> tuple[T, ...]:
        """A list, each of whose items `read` turns into a value; it gets the item and its place."""
        items = self._take(name, list, "a list", default)
        if items is default:
            return items  # type: ignore[return-value]
        return tuple(read(item, f"{self.path(name)}[{at}]") for at, item in enumerate(items))

    def table(self, name: str) -> Fields | None:
        """An object inside this one; None when absent."""
        value = self.raw(name)
        return None if value is None else Fields(value, self.path(name))

    def text_table(self, name: str) -> dict[str, str]:
        """An object whose values are all strings; empty when absent."""
        inner = self.table(name)
        return {key: inner.text(key) for key in inner} if inner else {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def values(self) -> dict[str, JsonValue]:
        """Every field as it stands, for an object whose fields nobody here interprets."""
        self._asked.update(self._values)
        return {name: _json(value, self.path(name)) for name, value in self._values.items()}

    def finish(self) -> None:
        """Refuse a field that no getter asked for, naming the nearest one that was."""
        for name in self._values:
            if name not in self._asked:
                raise Refused(f"{self.path(name)}: there is no such field here{nearest(name, self._asked)}")

    def _take(self, name: str, kind: type[T], words: str, default: object) -> T:
        value = self.raw(name)
        if value is None:
            if default is REQUIRED:
                misspelt = _closest(name, self._values.keys() - self._asked)
                hint = f"; is {quoted(misspelt)} it, misspelt?" if misspelt else ""
                raise self.wrong(name, f"is missing; it must be {words}{hint}")
            return default  # type: ignore[return-value]
        return _expect(value, kind, words, self.path(name))


def _expect(value: object, kind: type[T], words: str, where: str) -> T:
    # A bool is an int to Python; to everybody else it is not a number.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Refused(f"{where}: is {_type_name(value)}; it must be {words}")
    return value


def _base64(text: str, where: str) -> bytes:
    refusal = Refused(f"{where}: {quoted(text)} is not base64 with padding")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error is one, and so is what a letter beyond ASCII raises
        raise refusal from error
    if base64.b64encode(data).decode("ascii") != text:  # decoders forgive stray bits and too much padding
        raise refusal
    return data


def _json(value: object, where: str, depth: int = 0) -> JsonValue:
    if depth > _DEEPEST:
        raise Refused(f"{where[:120]}…: is nested too deeply")
    if value is None or isinstance(value, (bool, str)):
        return value
    # TOML knows infinity and numbers of any length; 64 bits are what other readers of JSON bear.
    if isinstance(value, int) and abs(value) < 2**64:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (int, float)):
        raise Refused(f"{where}: is a number beyond what JSON can hold")
    if isinstance(value, (list, tuple)):
        return [_json(item, f"{where}[{at}]", depth + 1) for at, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): _json(item, field_path(where, str(key)), depth + 1) for key, item in value.items()}
    raise Refused(f"{where}: is {_type_name(value)}, which JSON cannot hold")  # a TOML date


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}")
