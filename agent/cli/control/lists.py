"""Lists of resources as files: TOML or JSON."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from agent.cli import options
from agent.errors import Refused

if TYPE_CHECKING:
    from agent.fields import Fields
    from agent.resources import Document


def read_list(file: str) -> Document:
    """The list in a TOML or JSON file; a bare JSON list is one too."""
    from agent.resources import read_document

    fields = read_fields("the list", file)
    document = read_document(fields)
    fields.finish()
    return document


def read_fields(what: str, file: str) -> Fields:
    """The object in a TOML or JSON file; a bare JSON list counts as its resources."""
    from agent.fields import Fields, parse_json

    data = options.read_input(what, file)
    # TOML begins with neither; its [table] and [[resource]] have a name inside.
    if re.match(rb"\s*(\{|\[\s*[\]{])", data):
        value: object = parse_json(data)
        return Fields({"resource": value} if isinstance(value, list) else value)
    return Fields(_parse_toml(data, file))


def _parse_toml(data: bytes, file: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are both ValueErrors
        raise Refused(f"{file} is neither TOML nor JSON: {error}") from error
    return document
