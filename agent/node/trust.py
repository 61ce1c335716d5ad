"""Accept or refuse: one pure function over the bytes that arrived.

It asks, in this order: is the envelope well-formed · does the signature verify under a signer the node trusts · can the
bytes be read, with no key twice · are they a declaration of the known type · for this node · with a serial not lower
than the accepted one · and if the same then the same bytes · is its head well-formed, with no unknown field · not
expired · does every resource validate · does an empty list say that it means it · does nothing claim what a carried
resource claims, nor two the same, nor the agent's own folder · can each kind ever be made here. The same serial with
the same bytes is accepted again.

Whole or not at all: what comes out is either everything to act on or one sentence. Whatever goes wrong is a sentence
too; a message that nobody could judge would come again for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agent.envelope import SIGNATURE_BYTES, verifies
from agent.errors import AgentError, Refused
from agent.fields import Fields, quoted
from agent.resources import (
    Context,
    Declaration,
    Resource,
    check_beside,
    check_state_folder,
    check_type,
    check_within,
    expired,
    open_declaration,
    read_declaration,
)
from agent.wire import decode_signed

log = logging.getLogger(__name__)


class _AnyId(frozenset[str]):
    """Every id there could be."""

    def __contains__(self, id: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Known:
    """What the node knows when a message arrives.

    `serial` and `accepted` are the last accepted declaration's (0 and empty before any). `assigned` are the ids that
    the ledger or the last recovery copy holds as the mesh's. `impossible` says why a list can never be made here.
    """

    node: str
    signers: Collection[bytes]
    serial: int
    accepted: bytes
    assigned: Collection[str]
    carried: Sequence[Resource]
    context: Context
    impossible: Callable[[Sequence[Resource]], str | None]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A declaration to be committed and applied, with the key that verified it."""

    declaration: Declaration
    resources: tuple[Resource, ...]
    data: bytes
    signature: bytes
    signer: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing will change. `serial` is the refused one; None when the bytes weren't verified, or hold none."""

    why: str
    serial: int | None


def judge(body: bytes, known: Known, now: datetime) -> Acceptance | Refusal:
    """Decide about one message from the node's queue."""
    try:
        signed = decode_signed(body)
    except Refused as error:
        return Refusal(f"the envelope is malformed: {error}", None)
    if not signed.declaration:
        return Refusal("the envelope is malformed: it holds no declaration", None)
    if len(signed.signature) != SIGNATURE_BYTES:
        return Refusal(f"the signature has {len(signed.signature)} bytes, not {SIGNATURE_BYTES}", None)
    signer = _verifying(known.signers, signed.declaration, signed.signature)
    if signer is None:
        return Refusal("the signature does not verify under any signer this node trusts", None)
    verdict = read_verified(signed.declaration, known, now)
    if isinstance(verdict, Refusal):
        return verdict
    declaration, resources = verdict
    return Acceptance(declaration, resources, signed.declaration, signed.signature, signer)


def read_verified(data: bytes, known: Known, now: datetime) -> tuple[Declaration, tuple[Resource, ...]] | Refusal:
    """Ask everything that comes after the signature, of bytes that a trusted signer signed."""
    serial: int | None = None
    try:
        fields = open_declaration(data)
        serial = _stated_serial(fields)
        return _read(data, fields, known, now)
    except AgentError as error:
        return Refusal(str(error), serial)
    except Exception as error:
        log.exception("an error of the agent's own while judging a declaration")
        return Refusal(
            f"an error of the agent's own ({type(error).__name__}: {error}); the agent's log has the details", serial
        )


def reread(data: bytes, signature: bytes, signer: bytes, state: Path) -> tuple[Resource, ...]:
    """The resources of a declaration that was accepted earlier, its signature verified again under the same key.

    The other rules are not asked again: a reboot past an expiry brings back what was there, and that a carried need has
    gone since is one resource's failure. Refused when the bytes on disk are no longer what was signed.
    """
    if not verifies(signer, data, signature):
        raise Refused("the accepted declaration on disk no longer carries its signature; nothing of it is applied")
    return read_declaration(open_declaration(data)).resources(Context(state), _AnyId())


def _read(data: bytes, fields: Fields, known: Known, now: datetime) -> tuple[Declaration, tuple[Resource, ...]]:
    """Every rule from the type on, in its order; the first that is broken is raised as Refused."""
    check_type(fields)
    node = fields.text("node")
    if node != known.node:
        raise Refused(f"this declaration is for node {quoted(node)}, and this is {quoted(known.node)}")
    serial = fields.integer("serial", least=1)
    if serial < known.serial:
        raise Refused(f"serial {serial} is lower than {known.serial}, which was accepted already")
    if serial == known.serial and data != known.accepted:
        raise Refused(f"serial {serial} was accepted before with other content")
    declaration = read_declaration(fields)
    late = expired(declaration, now)
    if late is not None:
        raise Refused(
            f"it expired {int(late.total_seconds())} s ago by this machine's clock; "
            "declare again, or set the clock right"
        )
    resources = declaration.resources(known.context, {one.id for one in known.carried})
    _check_emptiness(declaration, known)
    check_beside(resources, known.carried)
    check_within(resources)
    check_state_folder(resources, known.context.state)
    why = known.impossible(resources)
    if why:
        raise Refused(why)
    return declaration, resources


def _stated_serial(fields: Fields) -> int | None:
    try:
        return fields.integer("serial", least=1)
    except Refused:
        return None


def _check_emptiness(declaration: Declaration, known: Known) -> None:
    if declaration.items or declaration.retire or not known.assigned:
        return
    raise Refused(
        f"an empty list would remove {len(known.assigned)} assigned resources; one that means it says retire = true"
    )


def _verifying(signers: Collection[bytes], data: bytes, signature: bytes) -> bytes | None:
    return next((signer for signer in signers if verifies(signer, data, signature)), None)
