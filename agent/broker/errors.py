"""What can go wrong with a broker. All of it may pass by itself: a link tries for ever."""

from __future__ import annotations

from agent.errors import Unavailable


class Unreachable(Unavailable):
    """No TLS connection came about: no such host, nothing listening, no answer in time, no common TLS."""


class PinMismatch(Unavailable):
    """The broker showed a certificate that no pin allows, so it was told nothing. `shown` is its SHA-256."""

    def __init__(self, peer: str, shown: str) -> None:
        super().__init__(
            f"{peer} shows the certificate {shown}, which is none of those pinned here, so nothing was sent "
            "to it; if the mesh has a new certificate, join again with a new token, else find out who answers there"
        )
        self.shown = shown


class LoginRefused(Unavailable):
    """The broker knows no such account with such a password."""


class Denied(Unavailable):
    """The account may not do this: a permission or one of its limits forbids it."""


class Lost(Unavailable):
    """The session is over: connection, channel or consumer is gone. Only a new session goes on."""


class Blocked(Lost):
    """The broker takes no messages, being short of memory or disk."""


class QueueInUse(Unavailable):
    """Somebody else consumes this queue exclusively. The session is as good as before."""


class NoSuchQueue(Unavailable):
    """The broker has no such queue. The session is as good as before."""


class Unroutable(Unavailable):
    """No queue is bound for this message: it was returned. The session is as good as before."""


class QueueFull(Unavailable):
    """The broker did not take the message, its queue being full. The session is as good as before."""


class Unanswered(Unavailable):
    """The request was taken, but no reply came in time. The session is as good as before."""
