"""What is to be done with a container, from what is wanted and what is there; nothing is asked of an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.kinds import marks
from agent.kinds.container.container import Action, Container, Observed
from agent.kinds.container.state import State
from agent.kinds.kind import Held, Mark, Standing, Verb, Wanted
from agent.resources import Context, EngineName, parse_resource

RESOURCE = parse_resource(
    {"kind": "container", "name": "web", "image": "app:1"}, "resource[0]", Context(Path("/state"))
)
WANTED = Wanted(RESOURCE, "stamp")


def marked(stamp: str = "stamp", state: str = "/state") -> dict[str, str]:
    mark = Mark(state, "container:web", found=False, stamp=stamp)
    return {"mesh-agent": marks.encode(mark).decode(), "mesh-agent.watched": "w"}


STATE = State("id", "web", "running", 7, "then", "image", marked(), {}, (), 10)
RUNS = Observed(
    engine=EngineName.PODMAN,
    found=STATE,
    standing=Standing.MADE,
    alive=True,
    elsewhere=(),
    image="image",
    watched="w",
    ready=True,
    tried=True,
)
KIND = Container()


@pytest.mark.parametrize(
    ("observed", "reason", "action"),
    [
        (replace(RUNS, found=None, standing=Standing.ABSENT), "it was not there", Action.MAKE),
        (
            replace(RUNS, found=replace(STATE, labels=marked("before"))),
            "it was made as it was declared before",
            Action.MAKE,
        ),
        (replace(RUNS, image="newer"), "its image is another now", Action.MAKE),
        (replace(RUNS, watched="v"), "a file that it watches has changed", Action.MAKE),
        (replace(RUNS, found=replace(STATE, status="created", started="")), "it was only half made", Action.MAKE),
        (replace(RUNS, found=replace(STATE, status="exited")), "it had stopped", Action.START),
        (replace(RUNS, found=replace(STATE, status="created")), "it had stopped", Action.START),
        (replace(RUNS, found=replace(STATE, status="exited"), tried=False), "it was exited", Action.MAKE),
        (replace(RUNS, found=replace(STATE, status="paused")), "it was paused", Action.MAKE),
        (replace(RUNS, alive=False), "podman had lost its process", Action.MAKE),
        (replace(RUNS, elsewhere=(EngineName.DOCKER,)), "it was in docker", Action.MAKE),
        (replace(RUNS, ready=False), "it runs already, but was not seen ready", Action.AWAIT),
    ],
)
def test_what_is_done_and_why(observed: Observed, reason: str, action: Action) -> None:
    plan = KIND.plan(WANTED, observed, Held(False, "stamp"))
    assert (plan.reason, plan.actions) == (reason, (action,))


def test_what_runs_as_wanted_is_kept_or_adopted() -> None:
    assert KIND.plan(WANTED, RUNS, Held(False, "stamp")).verb is Verb.KEEP
    assert KIND.plan(WANTED, RUNS, None).verb is Verb.ADOPT
    assert KIND.plan(WANTED, RUNS, Held(False, "")).verb is Verb.ADOPT
    # An image that isn't carried may be any of its name.
    assert KIND.plan(WANTED, replace(RUNS, image=""), Held(False, "stamp")).verb is Verb.KEEP


@pytest.mark.parametrize(
    ("labels", "whose"),
    [({}, "is not the agent's"), (marked(state="/other"), "belongs to the agent of /other")],
)
def test_somebody_elses_is_a_failure(labels: dict[str, str], whose: str) -> None:
    observed = replace(RUNS, found=replace(STATE, labels=labels), standing=Standing.FOREIGN)
    with pytest.raises(Unavailable, match=f"^podman has a container web that {whose}; rename or remove"):
        KIND.plan(WANTED, observed, None)
