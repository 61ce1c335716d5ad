"""What is taken back after a lost ledger of what the mesh had sent: its secrets, and never what was made here."""

from __future__ import annotations

import base64
import time
from pathlib import Path

from agent.envelope import seal
from agent.kinds import KINDS
from agent.kinds.kind import Machine
from agent.node.identity import Identity
from agent.node.ledger import open_ledger
from agent.node.recovering import take_back
from agent.reconcile import Reconciler
from agent.resources import Context, Origin, parse_list


def test_a_secret_that_the_mesh_sent_is_let_go_of_and_one_that_was_made_here_is_kept(ground: Path) -> None:
    key = Identity(ground).signing_key()
    machine = Machine(ground, b"k" * 32, lambda name: iter(()))
    box = base64.b64encode(seal(key.public, b"value")).decode("ascii")
    resources = parse_list(
        [
            {"kind": "secret", "name": "sent", "sealed": box},
            {"kind": "secret", "name": "still", "sealed": box},
            {"kind": "secret", "name": "made"},
        ],
        Context(ground),
    )
    ledger = open_ledger(ground, time.time, write=True)
    reconciler = Reconciler(ledger, machine, KINDS, time.monotonic)
    assert reconciler.apply(resources, Origin.ASSIGNED, prune=True, tell=lambda step: None).failed == {}
    ledger.close()
    (ground / "ledger.db").unlink()

    ledger = open_ledger(ground, time.time, write=True)
    ledger.accept(7, b"", b"", b"", ["secret:made", "secret:sent", "secret:still", "secret:never"], None)
    take_back(ledger, {"secret:still"}, KINDS, machine)
    assert [entry.resource.id for entry in ledger.entries(Origin.ASSIGNED)] == ["secret:sent"]
    again = Reconciler(ledger, machine, KINDS, time.monotonic)
    assert again.apply(resources[1:2], Origin.ASSIGNED, prune=True, tell=lambda step: None).failed == {}
    ledger.close()
    assert sorted(path.name for path in (ground / "secrets" / "root").iterdir()) == ["made", "still.mesh"]
