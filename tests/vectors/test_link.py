"""The messages as another implementation (Go's encoding/json) encodes them: each decoded, ours encoded alike."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import wire
from agent.envelope import verifies
from agent.errors import Refused
from agent.resources import check_type, open_declaration, read_declaration

LINK = Path(__file__).parent / "link"
KEY = base64.b64decode("A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=")

Message = wire.EnrolRequest | wire.EnrolReply | wire.Alive | wire.Report | wire.Signed

# The file, how it is read, what it says, and the names of all its fields.
VECTORS: dict[str, tuple[Callable[[bytes], Message], Message, set[str]]] = {
    "alive.json": (wire.decode_alive, wire.Alive("node-a"), {"node"}),
    "enrol-request-full.json": (
        wire.decode_enrol_request,
        wire.EnrolRequest(
            node="node-a",
            secret="s3cret",
            public_key=KEY,
            overlay_key=b"overlay",
            profile={"arch": "x86_64", "cpus": 4, "engines": ["podman"], "memory_bytes": 25325268992},
        ),
        {"node", "secret", "public_key", "overlay_key", "profile"},
    ),
    "enrol-request-null-key.json": (
        wire.decode_enrol_request,
        wire.EnrolRequest(node="node-a", secret="s3cret", public_key=b""),
        {"node", "secret", "public_key"},
    ),
    "enrol-reply-accepted.json": (
        wire.decode_enrol_reply,
        wire.EnrolReply(
            accepted=True,
            node="node-a",
            queue="node.node-a",
            password="p",
            fingerprint="ab12",
            signer=KEY,
            broker="amqps://10.0.0.1:5671",
        ),
        {"accepted", "node", "queue", "password", "fingerprint", "signer", "broker"},
    ),
    "enrol-reply-refused.json": (
        wire.decode_enrol_reply,
        wire.EnrolReply(accepted=False, refusal="this token cannot be used to join"),
        {"accepted", "refusal"},
    ),
    "report-empty.json": (wire.decode_report, wire.Report("node-a"), {"node"}),
    "report-full.json": (
        wire.decode_report,
        wire.Report(
            "node-a",
            applied=("web", "db"),
            failed={"cache": "port 6379/tcp is held by <redis> & co"},
            carried=(4369, 5671, 15672),
        ),
        {"node", "applied", "failed", "carried"},
    ),
    "report-refused.json": (
        wire.decode_report,
        wire.Report("node-a", refused="signature does not verify"),
        {"node", "refused"},
    ),
    "signed-empty.json": (wire.decode_signed, wire.Signed(b"", b""), {"declaration", "signature"}),
}


def read(name: str) -> bytes:
    return (LINK / name).read_bytes()


def test_every_vector_is_tried() -> None:
    assert {path.name for path in LINK.iterdir()} == {*VECTORS, "signed.json", "signed-tampered.json"}


@pytest.mark.parametrize("name", VECTORS)
def test_is_decoded(name: str) -> None:
    decode, message, _ = VECTORS[name]
    assert decode(read(name)) == message


@pytest.mark.parametrize("name", VECTORS)
def test_ours_is_encoded_to_the_same_value_under_the_same_names(name: str) -> None:
    _, message, names = VECTORS[name]
    ours = json.loads(message.encode())
    assert ours == json.loads(read(name))
    assert set(ours) == names


def test_the_signature_verifies_over_the_declaration_exactly_as_it_arrived() -> None:
    signed = wire.decode_signed(read("signed.json"))
    signer = wire.decode_enrol_reply(read("enrol-reply-accepted.json")).signer
    assert verifies(signer, signed.declaration, signed.signature)
    assert not verifies(signer, signed.declaration.rstrip(), signed.signature)
    assert json.loads(signed.encode()) == json.loads(read("signed.json"))


def test_what_is_signed_there_is_refused_as_a_declaration() -> None:
    fields = open_declaration(wire.decode_signed(read("signed.json")).declaration)
    check_type(fields)
    with pytest.raises(Refused, match=r"declaration.issued_at: is missing"):
        read_declaration(fields)


def test_a_tampered_declaration_does_not_verify() -> None:
    signed = wire.decode_signed(read("signed-tampered.json"))
    assert not verifies(KEY, signed.declaration, signed.signature)


def test_an_empty_envelope_does_not_verify() -> None:
    signed = wire.decode_signed(read("signed-empty.json"))
    assert not verifies(KEY, signed.declaration, signed.signature)
