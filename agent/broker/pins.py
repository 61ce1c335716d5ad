"""TLS to a peer that is known by the SHA-256 of its certificate and by nothing else.

No authority, expiry or host name is asked: the pin says more than all of them. It is compared at the end of the
handshake, which is before the protocol above TLS can send a byte.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable

from agent.broker.errors import PinMismatch


def pinned_context(pins: frozenset[str], peer: str, opened: Callable[[ssl.SSLSocket], None]) -> ssl.SSLContext:
    """A client context whose sockets raise PinMismatch unless their peer is pinned. `peer` names it in sentences.

    `opened` is handed each socket made, so that whoever connects through a library can close it for certain.
    """

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            opened(self)
            super().do_handshake(block)
            shown = hashlib.sha256(self.getpeercert(binary_form=True) or b"").hexdigest()
            if shown not in pins:
                raise PinMismatch(peer, shown)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.sslsocket_class = PinnedSocket
    return context
