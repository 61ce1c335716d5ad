from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.envelope import PUBLIC_KEY_BYTES, SEED_BYTES, SIGNATURE_BYTES, SigningKey, seal, verifies
from agent.errors import Refused
from agent.resources import SEAL_BYTES

KEY = SigningKey(b"\x07" * SEED_BYTES)
# The order of the group, RFC 8032 section 5.1.
ORDER = 2**252 + 27742317777372353535851937790883648493


def flipped(data: bytes, bit: int) -> bytes:
    return (int.from_bytes(data, "big") ^ 1 << bit % (len(data) * 8)).to_bytes(len(data), "big")


@given(st.binary(max_size=200))
def test_what_is_signed_verifies(message: bytes) -> None:
    assert verifies(KEY.public, message, KEY.sign(message))


@given(st.binary(min_size=1, max_size=200), st.integers(0))
def test_a_flipped_bit_of_the_message_is_seen(message: bytes, bit: int) -> None:
    assert not verifies(KEY.public, flipped(message, bit), KEY.sign(message))


@pytest.mark.parametrize("bit", range(SIGNATURE_BYTES * 8))
def test_a_flipped_bit_of_the_signature_is_seen(bit: int) -> None:
    assert not verifies(KEY.public, b"message", flipped(KEY.sign(b"message"), bit))


@pytest.mark.parametrize("bit", range(PUBLIC_KEY_BYTES * 8))
def test_a_flipped_bit_of_the_key_is_seen(bit: int) -> None:
    assert not verifies(flipped(KEY.public, bit), b"message", KEY.sign(b"message"))


def test_another_key_did_not_sign_it() -> None:
    assert not verifies(SigningKey(bytes(SEED_BYTES)).public, b"message", KEY.sign(b"message"))


@given(st.binary(max_size=100), st.binary(max_size=100), st.binary(max_size=100))
def test_whatever_is_given_is_answered(public: bytes, message: bytes, signature: bytes) -> None:
    assert not verifies(public, message, signature)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
def test_what_only_has_the_right_lengths_is_no_signature(public: bytes, signature: bytes) -> None:
    assert not verifies(public, b"message", signature)


@pytest.mark.parametrize("size", [0, SIGNATURE_BYTES - 1, SIGNATURE_BYTES + 1])
def test_a_signature_has_64_bytes(size: int) -> None:
    signature = (KEY.sign(b"message") + b"\0")[:size]
    assert not verifies(KEY.public, b"message", signature)


def test_a_signature_has_no_second_form() -> None:
    signature = KEY.sign(b"message")
    scalar = int.from_bytes(signature[32:], "little") + ORDER
    assert not verifies(KEY.public, b"message", signature[:32] + scalar.to_bytes(32, "little"))


@pytest.mark.parametrize(
    "public",
    [
        bytes(32),
        b"\x01" + bytes(31),
        bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    ],
)
def test_a_key_of_small_order_signs_nothing(public: bytes) -> None:
    identity = b"\x01" + bytes(31)
    assert not verifies(public, b"message", identity + bytes(32))


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_seed_has_32_bytes(size: int) -> None:
    with pytest.raises(Refused, match=f"32 bytes, not {size}"):
        SigningKey(bytes(size))


def test_a_private_key_does_not_print_itself() -> None:
    shown = f"{KEY} {KEY!r}"
    assert KEY.seed.hex() not in shown
    assert repr(KEY.seed) not in shown


@given(st.binary(max_size=200))
def test_what_is_sealed_is_opened_by_its_key_alone(message: bytes) -> None:
    box = seal(KEY.public, message)
    assert len(box) == SEAL_BYTES + len(message)
    assert KEY.unseal(box) == message
    assert SigningKey(bytes(SEED_BYTES)).unseal(box) is None
    assert seal(KEY.public, message) != box


@given(st.integers(0))
def test_a_flipped_bit_of_a_box_is_seen(bit: int) -> None:
    assert KEY.unseal(flipped(seal(KEY.public, b"message"), bit)) is None


@given(st.binary(max_size=100))
def test_what_is_no_box_is_not_opened(box: bytes) -> None:
    assert KEY.unseal(box) is None


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32), b"\x01" + bytes(31), b"\xff" * 32, bytes(33)])
def test_nothing_is_sealed_for_what_is_no_key(public: bytes) -> None:
    with pytest.raises(Refused, match="nothing can be sealed"):
        seal(public, b"message")
