"""Shutting a machine out, and forgetting it: nothing of a removed node is left here or on the broker.

The machine itself need not be there, and isn't asked. What it runs goes on running until it is reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.control.declaring import find_node
from agent.control.store import Store
from agent.errors import Refused
from agent.wire import join_account, node_queue

if TYPE_CHECKING:
    from agent.control.accounts import Accounts


def shut_out(accounts: Accounts, node: str) -> None:
    """End a node's account, which disconnects it, and drop what waits for it."""
    accounts.delete_account(node_queue(node))
    accounts.purge_queue(node_queue(node))


def remove_node(store: Store, accounts: Accounts, name: str, *, founder: str) -> None:
    """Forget a node: its tokens, accounts, queue, record.

    Refused for a node that isn't there, for the founder's own, and while others refer to it; Unavailable when the
    broker's management can't be reached. What an interruption leaves is removed by another call.
    """
    # The store is held while the broker is asked, so that nobody refers to what is about to go, or makes it again. The
    # record stands until all is gone; by it a call that was interrupted is found unfinished.
    with store.transaction():
        find_node(store, name)
        if name == founder:
            raise Refused(f"{name} is the founder's own node, and the mesh is on it; `agent reset` there ends both.")
        users = store.arrangements.users_of(name)
        if users:
            raise Refused(f"What is arranged for {', '.join(users)} refers to {name}; change that first.")
        store.tokens.forget_all(name)
        store.nodes.remove(name)
        accounts.delete_account(join_account(name))
        accounts.delete_account(node_queue(name))
        accounts.delete_queue(node_queue(name))
