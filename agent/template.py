"""Templates in string values: `${name}` and `${group.name}` are references, `$${` is a literal `${`.

A template may be filled in several steps, by different machines, and travels as a string between them. So a
step that does not fill everything writes what it filled as data: a `${` inside a filled value is escaped
and can't become a reference later. In a run of dollars before a brace each pair stands for one dollar,
which makes every sequence of text and references expressible; dollars before anything else are themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from agent.errors import Refused
from agent.fields import nearest, quoted

# Looking behind keeps a long run of dollars from being tried again from each of them.
_OPENING = re.compile(r"(?<!\$)(\$+)\{")
_NAME = re.compile(r"[a-z]+(\.[A-Za-z0-9][A-Za-z0-9_-]*)*")


@dataclass(frozen=True, slots=True)
class Reference:
    """A name to be filled in: `secret.broker`, `state`."""

    name: str


Part = str | Reference


@dataclass(frozen=True, slots=True)
class Template:
    """Text and references in turn; no two texts stand side by side."""

    parts: tuple[Part, ...]

    @property
    def references(self) -> frozenset[str]:
        """The names that are still to be filled."""
        return frozenset(part.name for part in self.parts if isinstance(part, Reference))

    def fill(self, values: Mapping[str, str]) -> Template:
        """Fill the names that `values` has; the others stay."""
        return _merged(values.get(part.name, part) if isinstance(part, Reference) else part for part in self.parts)

    def render(self, value_of: Callable[[str], str]) -> str:
        """The finished text, each reference replaced by what `value_of` gives for its name."""
        return "".join(value_of(part.name) if isinstance(part, Reference) else part for part in self.parts)

    def text(self, where: str) -> str:
        """The finished text of a template in which nothing is left to fill; Refused when something is."""
        return self.render(lambda name: _left_over(name, where))

    def encode(self) -> str:
        """The string that `parse` reads back as this template."""
        written = []
        for at, part in enumerate(self.parts):
            if isinstance(part, Reference):
                written.append("${" + part.name + "}")
                continue
            text = _OPENING.sub(lambda match: match[1] * 2 + "{", part)
            if at + 1 < len(self.parts):  # dollars that end a text would belong to the next reference's run
                dollars = len(text) - len(text.rstrip("$"))
                text += "$" * dollars
            written.append(text)
        return "".join(written)


def parse(text: str, where: str) -> Template:
    """Read a template; `where` names the field in the refusal of a malformed one."""
    parts: list[Part] = []
    position = 0
    while match := _OPENING.search(text, position):
        dollars = len(match[1])
        parts.append(text[position : match.start()] + "$" * (dollars // 2))
        position = match.end()
        if dollars % 2 == 0:
            parts.append("{")
            continue
        name = _NAME.match(text, position)
        if not name or text[name.end() : name.end() + 1] != "}":
            raise Refused(
                f"{where}: {quoted(text[match.end() - 2 : position + 30])} is no reference; "
                "write ${group.name}, or $${ for a literal ${"
            )
        parts.append(Reference(name[0]))
        position = name.end() + 1
    parts.append(text[position:])
    return _merged(parts)


def unknown(name: str, where: str, known: Mapping[str, str]) -> Refused:
    """The refusal of a name that nothing here fills."""
    return Refused(f"{where}: nothing here is called ${{{name}}}{nearest(name, known)}")


def _left_over(name: str, where: str) -> str:
    raise Refused(f"{where}: ${{{name}}} has no value here; it is unknown, or it is known only once things are applied")


def _merged(parts: Iterable[Part]) -> Template:
    merged: list[Part] = []
    for is_text, run in groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            text = "".join(part for part in run if isinstance(part, str))
            merged.extend([text] if text else [])
        else:
            merged.extend(run)
    return Template(tuple(merged))
