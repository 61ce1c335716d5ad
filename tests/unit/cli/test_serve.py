"""What the native bundle's parameters are to `control serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.bundle import open_bundle
from agent.cli.arguments import build_parser
from agent.errors import Refused
from agent.node import substrate
from agent.resources import Service

ROOT = Path(__file__).parents[3]
STATE = Path("/var/lib/mesh-agent")


def arguments(**settings: str) -> list[str]:
    """The words that the founder's control service is started with, without the program."""
    loaded = substrate.load(open_bundle(ROOT / "agent" / "bundles" / "native"), STATE, "a", settings, founder=True)
    (service,) = (one.spec for one in loaded.resources if one.id == "service:control")
    assert isinstance(service, Service)
    return [word.text("command") for word in service.command[1:]]


@pytest.mark.parametrize(
    ("settings", "required"),
    [({}, False), ({"require_signatures": "true"}, True), ({"require_signatures": "false"}, False)],
)
def test_a_bundle_says_whether_statements_have_to_be_signed(settings: dict[str, str], required: bool) -> None:
    words = arguments(**settings)
    assert build_parser(words).parse_args(words).require_signatures is required


def test_what_is_neither_true_nor_false_is_refused() -> None:
    words = arguments(require_signatures="yes")
    with pytest.raises(Refused, match=r"require-signatures: must be true or false"):
        build_parser(words).parse_args(words)


def test_at_a_terminal_the_option_alone_says_it() -> None:
    words = ["control", "serve", "--require-signatures", "--state", str(STATE)]
    assert build_parser(words).parse_args(words).require_signatures is True
