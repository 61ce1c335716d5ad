from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.host import unitfile

text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))


def test_a_word_holds_what_has_a_meaning_as_it_is() -> None:
    assert unitfile.word("") == '""'
    assert unitfile.word("a b") == '"a b"'
    assert unitfile.word("%n $X \\ \" ' ;") == '"%%n $X \\\\ \\" \' ;"'
    assert unitfile.word("a\nb\tc\r\x01\x7f") == '"a\\nb\\tc\\r\\x01\\x7f"'
    assert unitfile.word("é\u2028") == '"é\u2028"'


def test_a_command_expands_nothing() -> None:
    assert unitfile.command(["/bin/sh", "-c", "echo $HOME"]) == ':"/bin/sh" "-c" "echo $HOME"'


def test_a_path_is_neither_stripped_nor_continued() -> None:
    assert unitfile.path("/") == "/"
    assert unitfile.path("/srv/100%") == "/srv/100%%"
    assert unitfile.path("/srv/a ") == "/srv/a /"
    assert unitfile.path("/srv/a\\") == "/srv/a\\/"


def test_a_pattern_matches_one_path() -> None:
    assert unitfile.pattern("/srv/[a]*?\\ %/x.env") == "/srv/\\[a\\]\\*\\?\\\\ %%/x.env"


def test_a_file_of_variables_is_quoted_as_for_a_shell() -> None:
    assert unitfile.environment({"A": "", "B": 'a"$`\\b\nc %n'}) == 'A=""\nB="a\\"\\$\\`\\\\b\nc %n"\n'


def test_what_systemd_takes_for_no_program() -> None:
    assert unitfile.can_execute("/usr/bin/[ é%$x")
    assert not any(map(unitfile.can_execute, ('/a"', "/a'", "/a\\b", "/a\nb", "/a\x7f")))


@given(text)
def test_a_word_is_one_line_without_what_ends_it(value: str) -> None:
    written = unitfile.word(value)
    assert not set("\n\r\x7f\x01") & set(written)
    assert read(written) == value


def read(written: str) -> str:
    """Read a quoted word as systemd.syntax(7) says: escapes, then specifiers, of which only %% is there."""
    escapes = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
    assert written[0] == written[-1] == '"'
    found, rest = "", written[1:-1]
    while rest:
        assert rest[0] != '"'
        if rest.startswith("\\x"):
            found, rest = found + chr(int(rest[2:4], 16)), rest[4:]
        elif rest[0] == "\\":
            found, rest = found + escapes[rest[1]], rest[2:]
        else:
            found, rest = found + rest[0], rest[1:]
    assert found.replace("%%", "").count("%") == 0
    return found.replace("%%", "%")
