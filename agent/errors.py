"""What can go wrong, divided by what the caller does about it: try again, refuse, give up.

The message of each is a sentence for a person: the thing, the reason and what to do.
"""

from __future__ import annotations


class AgentError(Exception):
    """Anything this program says in words instead of a traceback."""


class Unavailable(AgentError):
    """It may pass by itself: the same call can succeed later."""


class Refused(AgentError):
    """What was given cannot be accepted as it is; nothing was changed."""


class Fatal(AgentError):
    """This run cannot go on."""
