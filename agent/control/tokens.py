"""Making tokens, and being done with them: a token, its record and the broker's account for it are one thing.

- The record comes first, then the account, then the token is shown. So whoever tidies up, holding the store,
  never takes an account away under a token that is being made; and a token that is shown works.
- A failure while the account is made leaves the earlier tokens as they were.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.control.enrolment import secret_digest
from agent.control.store import Store
from agent.errors import Refused, Unavailable
from agent.fields import dns_label, quoted
from agent.token import Token
from agent.wire import join_account

if TYPE_CHECKING:
    from agent.control.accounts import Accounts

SECRET_BYTES = 32
DEFAULT_LIFETIME = 3600.0
SHORTEST_LIFETIME, LONGEST_LIFETIME = 1.0, 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Site:
    """What a token says of the mesh: the broker's place (`amqps://HOST:PORT`) and pins, whose word counts."""

    broker: str
    fingerprints: tuple[str, ...]
    signer: bytes


def create_token(
    store: Store,
    accounts: Accounts,
    site: Site,
    node: str,
    *,
    lifetime: float,
    replace: bool,
    now: float,
    random: Callable[[int], bytes],
) -> Token:
    """A new token for `node`, good for `lifetime` seconds; it ends every other one for that node.

    Refused for a name that is no DNS label, a lifetime nobody means, and, without `replace`, a node that is there
    already; Unavailable when the broker's management can't be reached, or the token was ended while it was being made,
    and then nothing has changed.
    """
    dns_label(node, "the node name")
    if not SHORTEST_LIFETIME <= lifetime <= LONGEST_LIFETIME:
        raise Refused("A token lives from one second to 365 days; choose a time between.")
    known = store.nodes.get(node)
    if known is not None and known.last_seen is not None and not replace:
        raise Refused(
            f"{node} has joined already. Say --replace if a machine is to join under this name again: the same one, "
            "which goes on as it is, or another or re-installed one, which takes its place and shuts it out."
        )
    secret = base64.urlsafe_b64encode(random(SECRET_BYTES)).decode("ascii").rstrip("=")
    id = store.tokens.add(node, secret_digest(secret), site.broker, site.signer, now=now, expires=now + lifetime)
    try:
        # The store is held, so that the account isn't made while the token, or its node, is being removed, and of two
        # that are being made the account is the later one's.
        with store.transaction():
            if not store.tokens.is_kept(id):
                raise Unavailable(f"The token for {node} was ended while it was being made; make another.")
            accounts.make_join(node, secret)
            store.tokens.forget_others(node, id)
    except BaseException:
        store.tokens.forget(id)
        raise
    return Token(node=node, broker=site.broker, fingerprints=site.fingerprints, signer=site.signer, secret=secret)


def tidy_tokens(store: Store, accounts: Accounts, now: float) -> None:
    """Remove the tokens that are over, each account before its record. Unavailable when the broker can't be
    asked.
    """
    for node in store.tokens.nodes_over(now):
        with store.transaction():
            # The store is held while the broker is asked: a token that is being made now waits, and finds
            # either its own record counted here or nothing in its way.
            if store.tokens.forget_over(node, now):
                accounts.delete_account(join_account(node))


def revoke_tokens(store: Store, accounts: Accounts, node: str) -> None:
    """End every token for a node, and its account with it. Refused when there is none; Unavailable when the broker's
    management can't be reached, and then nothing has changed.
    """
    with store.transaction():
        if not store.tokens.forget_all(node):
            raise Refused(f"There is no token for {quoted(node)}; see `agent control token list`.")
        accounts.delete_account(join_account(node))
