"""The founder's own right to join: left by its control plane in a file, until that node first speaks.

The token in the file is one that works: it is renewed when it is missing, expired, or not one that still
counts. One that was spent stays, because the node that spent it may have to ask again. A node that has spoken and has
lost since how it logs in asks for another by an empty file in that place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from agent.control.accounts import Accounts
from agent.control.config import Settings
from agent.control.enrolment import secret_digest
from agent.control.store import Store
from agent.control.tokens import DEFAULT_LIFETIME, Site, create_token
from agent.errors import Refused
from agent.host import files
from agent.token import parse_token


def leave_token(
    settings: Settings,
    store: Store,
    accounts: Accounts,
    signer: bytes,
    *,
    now: float,
    random: Callable[[int], bytes],
) -> None:
    """See that the founder's node finds a token while it needs one, and that none lies about afterwards.

    Unavailable when the broker's management or the disk can't be written to now.
    """
    node, content = store.nodes.get(settings.node), files.read(settings.token_file)
    if content and _still_counts(content, settings, store, signer, now):
        return
    if node is not None and node.last_seen is not None and content != b"":
        files.remove(settings.token_file)
    else:
        token = create_token(
            store,
            accounts,
            Site(str(settings.broker), pins(settings, store), signer),
            settings.node,
            lifetime=DEFAULT_LIFETIME,
            replace=True,
            now=now,
            random=random,
        )
        text = f"{token.encode()}\n".encode()
        files.write(settings.token_file, text, mode=0o600, uid=os.geteuid(), gid=os.getegid())


def pins(settings: Settings, store: Store) -> tuple[str, ...]:
    """What a token says to know the broker by: its certificate's pin and, during a renewal, the next one's."""
    return tuple(dict.fromkeys((*settings.fingerprints, *store.settings.pins)))


def known_by(settings: Settings, store: Store) -> Settings:
    """The settings by which the control plane itself knows the broker by all that nodes know it by: a broker reads a
    certificate that was swapped within minutes (RabbitMQ's cache of PEM files), before anything restarts it.
    """
    return replace(settings, fingerprints=pins(settings, store))


def _still_counts(content: bytes, settings: Settings, store: Store, signer: bytes, now: float) -> bool:
    try:
        token = parse_token(content.decode("utf-8", "replace"))
    except Refused:
        return False
    digest = secret_digest(token.secret)
    same = token.node == settings.node and token.fingerprints == pins(settings, store)
    return same and any(
        one.digest == digest and now < one.expires and (one.signer == signer or one.spending is not None)
        for one in store.tokens.live()
    )
