"""The test vectors of RFC 8032, section 7.1: what we sign is what every other implementation signs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.envelope import SigningKey, verifies

VECTORS = json.loads((Path(__file__).parent / "rfc8032.json").read_bytes())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_key_signature_and_verdict(vector: dict[str, str]) -> None:
    seed, public, message, signature = (
        bytes.fromhex(vector[name]) for name in ("seed", "public", "message", "signature")
    )
    key = SigningKey(seed)
    assert key.public == public
    assert key.sign(message) == signature
    assert verifies(public, message, signature)
    assert not verifies(public, message + b"\0", signature)
