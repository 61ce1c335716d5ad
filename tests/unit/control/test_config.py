"""control.toml is read whole or refused in words."""

from __future__ import annotations

import pytest

from agent.broker import Address
from agent.control.config import advertised, read_settings
from agent.errors import Refused

WHOLE = {
    "broker": '"amqps://127.0.0.1:5671"',
    "management": '"https://127.0.0.1:15671"',
    "account": '"control"',
    "password": '"p4ssword"',
    "fingerprints": f'["{"ab" * 32}"]',
    "advertised": '""',
    "token_file": '"/var/lib/mesh-agent/control/founder.token"',
    "node": '"founder"',
}


def write(state, **changes):
    (state / "control").mkdir(exist_ok=True)
    lines = [f"{name} = {value}" for name, value in {**WHOLE, **changes}.items() if value]
    (state / "control" / "control.toml").write_text("\n".join(lines))
    return state


def test_whole(tmp_path):
    settings = read_settings(write(tmp_path))
    assert settings.login.address == Address("127.0.0.1", 5671)
    assert settings.login.pins == frozenset({"ab" * 32})
    assert (settings.node, str(settings.token_file)) == ("founder", "/var/lib/mesh-agent/control/founder.token")
    assert "p4ssword" not in repr(settings)


def test_without_an_advertised_address_it_is_the_machines_own(tmp_path):
    address = advertised(read_settings(write(tmp_path, broker='"amqps://127.0.0.1:443"')))
    assert address.port == 443
    assert address.host


def test_an_advertised_address_is_what_tokens_say(tmp_path):
    settings = read_settings(write(tmp_path, advertised='"amqps://mesh.example.org:443"'))
    assert str(advertised(settings)) == "amqps://mesh.example.org:443"


def test_elsewhere_than_on_the_founder_it_says_where_to_run(tmp_path):
    with pytest.raises(Refused, match="run this on the founder"):
        read_settings(tmp_path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"broker": '"amqp://127.0.0.1"'}, "amqps://HOST:PORT"),
        ({"broker": ""}, r"control\.toml\.broker"),
        ({"fingerprints": "[]"}, r"control\.toml\.fingerprints"),
        ({"fingerprints": '["AB"]'}, r"control\.toml\.fingerprints"),
        ({"token_file": '"founder.token"'}, r"control\.toml\.token_file"),
        ({"node": '"No Label"'}, "DNS label"),
        ({"paswort": '"x"'}, r"control\.toml\.paswort"),
        ({"advertised": '"somewhere"'}, "amqps"),
        ({"advertised": "="}, "not TOML"),
    ],
)
def test_what_is_wrong_with_it_is_said(tmp_path, changes, why):
    with pytest.raises(Refused, match=why):
        read_settings(write(tmp_path, **changes))
