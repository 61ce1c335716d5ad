"""Who a node is to its mesh: as whom it logs in, by which token it joins, whose word counts here.

A token that it hasn't joined by comes first. A founder finds one where its own control plane leaves it, and asks for
another there by an empty file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from agent.errors import Unavailable
from agent.host import files, machine
from agent.node import enrolment
from agent.node.identity import Membership, Role
from agent.node.ledger import Ledger
from agent.node.life import Node
from agent.node.profile import profile
from agent.token import Token, parse_token


class Joining:
    """One node's membership of its mesh. `tell` takes a line for a person."""

    def __init__(self, node: Node, ledger: Ledger, tell: Callable[[str], None]) -> None:
        self._node = node
        self._ledger = ledger
        self._tell = tell

    def membership(self) -> Membership:
        """How to log in, after joining if that is still to be done. Unavailable while there is nothing to join with."""
        known, token = self._node.identity.membership(), self._token()
        if token and (known is None or known.joined_by != enrolment.joined_by(token)):
            return self._enrol(token)
        if known is None:
            if self._node.myself.role is Role.FOUNDER:
                self._ask_for_token()
                raise Unavailable("the control plane has not left a token for this node yet")
            raise Unavailable("this node has no token to join with; run `agent up --token-file FILE`")
        return known

    def again(self) -> Membership | None:
        """Join once more with the token that is still here, because the login was refused; None when there is none."""
        token = self._token()
        if token is None:
            self._ask_for_token()
            return None
        return self._enrol(token)

    def signers(self, membership: Membership) -> tuple[bytes, ...]:
        """Whose declarations count."""
        return self._ledger.trust().signers or membership.signers

    def pins(self, membership: Membership) -> frozenset[str]:
        """By which certificates the broker is known."""
        return frozenset(self._ledger.trust().fingerprints or membership.fingerprints)

    def _trusted(self, before: Membership | None) -> tuple[bytes, ...]:
        """Whose declarations counted, also where the membership before was lost."""
        accepted = self._ledger.accepted()
        if before is None and accepted is not None:
            return self._ledger.trust().signers or (accepted.signer,)
        return self.signers(before) if before else ()

    def _token(self) -> Token | None:
        kept = self._node.identity.token()
        mesh = self._node.substrate.mesh
        if kept or self._node.myself.role is not Role.FOUNDER or mesh is None:
            return kept
        text = files.read(mesh.token_file, uid=os.geteuid()) or b""
        return parse_token(text.decode("ascii", "replace")) if text else None

    def _ask_for_token(self) -> None:
        """Have a founder's own control plane leave a token."""
        mesh = self._node.substrate.mesh
        if self._node.myself.role is Role.FOUNDER and mesh and not mesh.token_file.exists():
            files.write(mesh.token_file, b"", mode=0o600, uid=os.geteuid(), gid=os.getegid())

    def _enrol(self, token: Token) -> Membership:
        identity = self._node.identity
        before = identity.membership()
        membership = enrolment.enrol(
            token,
            identity.signing_key(),
            profile(machine.look()),
            int(time.time()),
            keep_address=self._node.myself.role is Role.FOUNDER,
        )
        # The ledger first: a crash in between must not leave the old signers counting.
        self._ledger.begin_anew(keep_serial=token.signer in self._trusted(before))
        identity.join(membership)
        self._tell(f"enrolled as {self._node.myself.name}")
        return membership
