"""Ed25519 over exact bytes (RFC 8032), and boxes that only one such key opens: the only room that knows PyNaCl.

What is verified is what arrived; nothing is ever re-encoded to be verified. A box is libsodium's sealed box, for the
X25519 key that goes with an Ed25519 one; sealing the same twice gives two boxes. Only what signs, verifies or seals
waits for PyNaCl to be loaded.
"""

from __future__ import annotations

from agent.errors import Refused

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEED_BYTES = 32


class SigningKey:
    """A private key; it shows neither itself nor its seed when printed."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise Refused(f"a signing key's seed has {SEED_BYTES} bytes, not {len(seed)}")
        from nacl import signing

        self._key = signing.SigningKey(seed)
        self.seed = seed
        self.public = bytes(self._key.verify_key)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over `message`."""
        return self._key.sign(message).signature

    def unseal(self, box: bytes) -> bytes | None:
        """What was sealed for this key; None for anything else."""
        from nacl.public import SealedBox

        try:
            return SealedBox(self._key.to_curve25519_private_key()).decrypt(box)
        except Exception:
            return None


def seal(public_key: bytes, message: bytes) -> bytes:
    """`message` in a box that only the holder of this Ed25519 key opens. Refused for what is no such key."""
    from nacl.public import SealedBox
    from nacl.signing import VerifyKey

    try:
        return SealedBox(VerifyKey(public_key).to_curve25519_public_key()).encrypt(message)
    except Exception as error:
        raise Refused("nothing can be sealed for this public key, because it is none") from error


def verifies(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is `public_key`'s over exactly `message`. Whatever goes wrong is a no."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    from nacl.signing import VerifyKey

    try:
        VerifyKey(public_key).verify(message, signature)
    except Exception:
        return False
    return True
