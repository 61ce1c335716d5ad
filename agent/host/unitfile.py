"""How text is written in a systemd unit's file, and in a file of environment variables, so that it is read as it was.

systemd.syntax(7), systemd.service(5), systemd.exec(5): `%` begins a specifier, a backslash an escape or, at a line's
end, a continuation; what is quoted is one word. In a command `$` stays as it is after the prefix `:`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%"}
# What systemd takes in no program's path (its string_is_safe), beside control characters.
_UNSAFE = frozenset("\\\"'")
_GLOB = frozenset("*?[]\\")
# What a backslash keeps from being special between double quotes, to systemd as to a shell.
_SHELL = frozenset('"\\`$')


def word(text: str) -> str:
    """Any text without zeros as one quoted word; a value with `$` is not expanded where variables aren't."""
    return '"' + "".join(map(_escaped, text)) + '"'


def command(argv: Iterable[str]) -> str:
    """The value of ExecStart= for a program and its arguments, with nothing expanded in them."""
    return ":" + " ".join(map(word, argv))


def path(text: str) -> str:
    """An absolute path as the whole of a value, which is not unquoted."""
    doubled = text.replace("%", "%%")
    # A blank at the end would be stripped, a backslash there would join the next line; a slash says the same.
    return f"{doubled}/" if doubled[-1] in " \\" else doubled


def pattern(text: str) -> str:
    """A path as the whole of a value that is taken for a glob(7) pattern, matching that path alone."""
    return "".join(f"\\{one}" if one in _GLOB else one for one in text.replace("%", "%%"))


def can_execute(program: str) -> bool:
    """Whether systemd takes this for a program's path."""
    return not any(one in _UNSAFE or ord(one) < 32 or ord(one) == 127 for one in program)


def environment(values: Mapping[str, str]) -> str:
    """The text of a file for EnvironmentFile=."""
    return "".join(f'{name}="{_shell(value)}"\n' for name, value in values.items())


def _escaped(one: str) -> str:
    if one in _ESCAPES:
        return _ESCAPES[one]
    return f"\\x{ord(one):02x}" if ord(one) < 32 or ord(one) == 127 else one


def _shell(text: str) -> str:
    return "".join(f"\\{one}" if one in _SHELL else one for one in text)
