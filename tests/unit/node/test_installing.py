from __future__ import annotations

from pathlib import Path

import pytest

from agent.bundle import Bundle
from agent.errors import Refused
from agent.kinds import marks
from agent.kinds.kind import Mark
from agent.node import folder, installing
from agent.node.plans import Asked


def test_each_state_folder_has_a_unit_of_its_own() -> None:
    assert installing.unit_name(folder.DEFAULT) == "mesh-agent.service"
    names = {installing.unit_name(Path(path)) for path in ("/srv/a", "/srv/b", "/var/lib/mesh-agent")}
    assert len(names) == 3
    assert all(name.startswith("mesh-agent") and name.endswith(".service") for name in names)


def test_the_unit_bears_its_mark_and_runs_the_agent_s_own_copy() -> None:
    text = installing.unit_text(Path("/srv/my state"))
    assert marks.decode_line(text.encode()) == Mark("/srv/my state", "agent", found=False, stamp="")
    lines = text.splitlines()
    assert 'ExecStart=:"/srv/my state/agent" "up" "--state" "/srv/my state"' in lines
    assert {"KillMode=process", "Restart=always", "Wants=network-online.target"} < set(lines)
    assert not [line for line in lines if line.startswith(("Requires=", "BindsTo="))]


def test_without_systemd_it_is_said_what_to_do(ground: Path) -> None:
    told: list[str] = []
    asked = Asked(ground, Bundle("b", "ab" * 32, {}, {}, Path("/nowhere")), None)
    with pytest.raises(Refused, match=f"have what starts its other programs at boot run `{ground}/agent up"):
        installing.install(asked, told.append, lambda state: None)
    assert told == []
    assert list(ground.iterdir()) == []
    assert installing.installed(ground) == ()
    assert not installing.uninstall(ground, told.append)
    installing.refuse_running(ground)
    installing.remove(ground)
    assert "`agent up` takes over again from any other" in installing.what_keeps_the_agent(ground)
    assert "install" not in installing.what_keeps_the_agent(ground)
