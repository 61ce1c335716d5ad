from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import template
from agent.errors import Refused
from agent.template import Reference, Template

# Texts made of what templates are made of, far more often than chance would have it.
TEXT = st.text(st.sampled_from("${}$a.-x\n") | st.characters(), max_size=12)
NAMES = st.from_regex(r"[a-z]{1,4}(\.[A-Za-z0-9][A-Za-z0-9_-]{0,3}){0,2}", fullmatch=True)
PARTS = st.lists(TEXT | NAMES.map(Reference), max_size=6)


def merged(parts: list[str | Reference]) -> Template:
    """As `parse` gives it: no empty text, no two texts side by side."""
    found: list[str | Reference] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    return Template(tuple(found))


def literal(text: str) -> str:
    """A string that stands for `text` itself."""
    return Template((text,)).encode() if text else ""


def same(name: str) -> str:
    return f"<{name}>"


@given(PARTS)
def test_what_is_written_is_read_again(parts: list[str | Reference]) -> None:
    written = merged(parts)
    assert template.parse(written.encode(), "here") == written


@given(st.text(st.sampled_from("$${{}}ab.") | st.characters()))
def test_any_text_is_a_template_or_refused(text: str) -> None:
    try:
        read = template.parse(text, "here")
    except Refused:
        return
    assert template.parse(read.encode(), "here") == read


@given(st.text(st.characters(exclude_characters="{")))
def test_text_without_a_brace_is_itself(text: str) -> None:
    assert template.parse(text, "here") == merged([text])
    assert merged([text]).encode() == text


@given(PARTS, st.dictionaries(NAMES, TEXT))
def test_filling_in_two_steps_is_filling_at_once(parts: list[str | Reference], others: dict[str, str]) -> None:
    names = sorted({part.name for part in parts if isinstance(part, Reference)} | others.keys())
    values = {name: others.get(name, "$" * at + "{x}${y}$") for at, name in enumerate(names)}
    first = {name: value for at, (name, value) in enumerate(values.items()) if at % 2}
    written = merged(parts)
    travelled = template.parse(written.fill(first).encode(), "here").fill(values)
    assert travelled == written.fill(values)
    assert travelled.references == frozenset()
    assert travelled.text("here") == written.render(lambda name: values[name])


@given(PARTS, st.text(st.sampled_from("${}$a.x") | st.characters()))
def test_a_filled_value_is_data_whatever_it_holds(parts: list[str | Reference], value: str) -> None:
    """Also beside its neighbours: it can't become a reference or part of one, nor undo an escape."""
    written = merged([*parts, Reference("filled"), *parts])
    left = frozenset(part.name for part in parts if isinstance(part, Reference)) - {"filled"}
    filled = template.parse(written.fill({"filled": value}).encode(), "here")
    assert filled.references == left
    assert filled.render(same) == written.render(lambda name: value if name == "filled" else same(name))


@pytest.mark.parametrize("value", ["$", "$$", "${", "${a}", "$${", "$${a}", "$$${a}", "{", "{a}", "}", "a}", ""])
@pytest.mark.parametrize("around", ["{}", "${}", "$${}", "{}{{a}}", "{}a}}", "{}{{", "{}${{b}}", "${{b}}{}", "{}$"])
def test_a_filled_value_is_data_beside_any_neighbour(value: str, around: str) -> None:
    before, after = (half.replace("{{", "{").replace("}}", "}") for half in around.split("{}"))
    parts = [
        *template.parse(before, "here").parts,
        Reference("filled"),
        *template.parse(after, "here").parts,
    ]
    filled = template.parse(merged(parts).fill({"filled": value}).encode(), "here")
    assert filled.references <= {"b"}
    assert filled.render(lambda _: "B") == before.replace("${b}", "B") + value + after.replace("${b}", "B")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("plain", ("plain",)),
        ("${state}", (Reference("state"),)),
        ("a${param.x}b", ("a", Reference("param.x"), "b")),
        ("${param.x}${param.y}", (Reference("param.x"), Reference("param.y"))),
        ("${secret.a-b_c.D}", (Reference("secret.a-b_c.D"),)),
        ("$${state}", ("${state}",)),
        ("$$${state}", ("$", Reference("state"))),
        ("$$$${state}", ("$${state}",)),
        ("$state $$ $}", ("$state $$ $}",)),
        ("{state}", ("{state}",)),
        ("$", ("$",)),
        ("${a}$", (Reference("a"), "$")),
        ("${a}{", (Reference("a"), "{")),
        ("$${", ("${",)),
    ],
)
def test_how_a_template_reads(text: str, parts: tuple[str | Reference, ...]) -> None:
    assert template.parse(text, "here").parts == parts


@pytest.mark.parametrize(
    "text",
    [
        "${",
        "${}",
        "${ state}",
        "${state }",
        "${state",
        "${state\n}",
        "${HOME}",
        "${HOME:-/root}",
        "${param.}",
        "${param..x}",
        "${param.-x}",
        "${pärm.x}",
        "${param.ä}",
        "${param.x:-y}",
        "${a${b}}",
        "${#a}",
        "$$${",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"^here: .* is no reference; write \$\{group.name\}, or \$\$\{ for a literal"):
        template.parse(text, "here")


def test_text_says_what_has_no_value() -> None:
    with pytest.raises(Refused, match=r"^here: \$\{secret.x\} has no value here"):
        template.parse("${secret.x}", "here").text("here")


def test_an_unknown_name_names_the_nearest() -> None:
    refusal = template.unknown("param.prt", "here", {"param.port": "1"})
    assert str(refusal) == 'here: nothing here is called ${param.prt}; did you mean "param.port"?'


@pytest.mark.parametrize("make", [template.parse, lambda text, _: Template((text,)).encode()])
@pytest.mark.parametrize("text", ["$" * 2_000_000, "$${" * 500_000, "{$x" * 500_000], ids=["$", "$${", "{$x"])
def test_a_long_run_of_dollars_is_read_in_one_go(make: Callable[[str, str], object], text: str) -> None:
    """Trying again from each dollar would take hours."""
    assert make(text, "here")


@given(st.text())
def test_a_literal_stands_for_itself(text: str) -> None:
    assert template.parse(literal(text), "here").text("here") == text
