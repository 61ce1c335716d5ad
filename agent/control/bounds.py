"""What strangers write, before it is kept or shown: bounded, and free of what could move a cursor or turn
text around.

Control characters (C0, C1), format characters (bidirectional overrides among them), surrogates and line
separators go; a line break becomes a blank, so that a reason stays one line of a log.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping

from agent.errors import Refused
from agent.fields import JsonValue, canonical

LONGEST_REASON = 2_000
LONGEST_ID = 4_400  # "file:" and a path of PATH_MAX, 4,096 bytes
LONGEST_VERSION = 100
LARGEST_PROFILE = 64 * 1024
MOST_IDS = 20_000
MOST_FAILURES = 1_000
MOST_PORTS = 65_535

# An IP address or a host's name: it is filled into what other nodes are declared, so it may be nothing else.
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}")
_BLANKS = "\t\n\v\f\r\x85\u2028\u2029"
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def clean(text: str, longest: int) -> str:
    """At most `longest` characters of `text`, printable ones; a cut is shown by an ellipsis."""
    cut = text[: longest + 1]
    kept = "".join(
        " " if character in _BLANKS else character
        for character in cut
        if character in _BLANKS or unicodedata.category(character) not in _DROPPED
    )
    return kept if len(text) <= longest else kept[: longest - 1] + "…"


def clean_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """Sorted distinct ids. Refused when there are more than any node could hold."""
    found = tuple(sorted({clean(one, LONGEST_ID) for one in ids}))
    if len(found) > MOST_IDS:
        raise Refused(f"it holds {len(found)} ids, more than the {MOST_IDS} that are kept")
    return found


def clean_failures(failures: Mapping[str, str]) -> dict[str, str]:
    """The first failures in their order, the rest counted in one more entry."""
    kept = {clean(id, LONGEST_ID): clean(why, LONGEST_REASON) for id, why in list(failures.items())[:MOST_FAILURES]}
    if len(failures) > MOST_FAILURES:
        kept["…"] = f"and {len(failures) - MOST_FAILURES} more failures that are not kept"
    return kept


def clean_ports(ports: Iterable[int]) -> tuple[int, ...]:
    """Sorted distinct port numbers; each was checked to be one when it was decoded."""
    return tuple(sorted(set(ports)))


def address(told: object) -> str | None:
    """Where others reach a node, as it says; None for what can't be that."""
    return told if isinstance(told, str) and _ADDRESS.fullmatch(told) else None


def clean_profile(profile: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A profile that can be stored and shown; one that is too large or too deep is replaced by a note."""
    try:
        cleaned = {clean(name, 200): _clean_value(value) for name, value in profile.items()}
        if len(canonical(cleaned)) <= LARGEST_PROFILE:
            return cleaned
    except (RecursionError, ValueError):  # too deep; a number of more digits than Python writes
        pass
    return {"note": f"left out, because it is larger than {LARGEST_PROFILE} characters or nested too deeply"}


def _clean_value(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return clean(value, LONGEST_REASON)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # 1e999 is JSON on its way in, and none on its way out
    if isinstance(value, list):
        return [_clean_value(item) for item in value]
    if isinstance(value, dict):
        return {clean(name, 200): _clean_value(item) for name, item in value.items()}
    return value


def account(user_id: str | None) -> str:
    """The account that sent a message, for a log."""
    return clean(user_id, 100) if user_id else "an account that it does not name"
