"""The node's side: its identity, its ledger, its life, and its link to the mesh."""
