"""The control plane's store: all of its SQL, over SQLite at `STATE/control/store.db`."""

from agent.control.store.arrangements import Arrangements
from agent.control.store.declarations import Declarations, Wanted
from agent.control.store.modules import Modules, Version
from agent.control.store.nodes import Nodes
from agent.control.store.secrets import MeshSecret, Secrets
from agent.control.store.settings import Settings
from agent.control.store.signers import Signer, Signers
from agent.control.store.store import Store, open_store, refuse_newer
from agent.control.store.tokens import Tokens

__all__ = [
    "Arrangements",
    "Declarations",
    "MeshSecret",
    "Modules",
    "Nodes",
    "Secrets",
    "Settings",
    "Signer",
    "Signers",
    "Store",
    "Tokens",
    "Version",
    "Wanted",
    "open_store",
    "refuse_newer",
]
