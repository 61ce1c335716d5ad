from __future__ import annotations

from agent.kinds.kind import Verb
from agent.kinds.reserved import Reserved

KIND = Reserved()


def test_it_is_noted_and_then_kept(bench) -> None:
    resource = bench.resource("reserved", "ssh", ports=["22"])
    KIND.check(resource.spec, bench.machine, [])
    plan = bench.make(KIND, resource)
    assert (plan.verb, plan.actions) == (Verb.ADOPT, ())
    assert not bench.held[resource.id].found
    assert bench.plan(KIND, resource).verb is Verb.KEEP
    assert KIND.value(resource.spec, bench.machine) is None
    assert bench.remove(KIND, resource, data=True).left == ""
