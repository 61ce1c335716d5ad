"""Ed25519 over exact bytes (RFC 8032), and nothing else: the only room that knows PyNaCl.

What is verified is what arrived; nothing is ever re-encoded to be verified.
"""

from __future__ import annotations

from nacl.signing import SigningKey as _NaclSigningKey
from nacl.signing import VerifyKey

from agent.errors import Refused

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEED_BYTES = 32


class SigningKey:
    """A private key; it shows neither itself nor its seed when printed."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise Refused(f"a signing key's seed has {SEED_BYTES} bytes, not {len(seed)}")
        self._key = _NaclSigningKey(seed)
        self.seed = seed
        self.public = bytes(self._key.verify_key)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over `message`."""
        return self._key.sign(message).signature


def verifies(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is `public_key`'s over exactly `message`. Whatever goes wrong is a no."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        VerifyKey(public_key).verify(message, signature)
    except Exception:
        return False
    return True
