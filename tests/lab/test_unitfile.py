"""What is written into a unit is what systemd reads: systemd itself is asked, with all that means something to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from agent.host import unitfile
from tests.lab.machines import UNITS, Lab, Machine

# The first test waits for the machines' image.
pytestmark = pytest.mark.timeout(900)

PLACE = Path("/srv/odd")
_SHOW = """\
import json, os, sys
with open("/srv/seen", "w") as file:
    json.dump([sys.argv[1:], dict(os.environ), os.getcwd()], file)
"""
# Standard input: a list of [path, text] to write. Output: what the started unit has seen.
_TRY = """\
import json, os, subprocess, sys
for path, text in json.load(sys.stdin):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
for words in (["daemon-reload"], ["start", "odd"]):
    subprocess.run(["systemctl", *words], check=True)
with open("/srv/seen") as file:
    print(file.read())
os.remove("/srv/seen")
"""

# Mostly what has a meaning in a unit's file, a shell or a pattern.
_special = st.sampled_from(
    [*"$%\\\"'`;#{}[]*?~!@:+-= \t\n\r\x01\x7f", "${HOME}", "$$", "%%", "%n", "\\\n", "é", "\U0001f600"]
)
_text = st.lists(_special | st.characters(exclude_categories=("Cs",), exclude_characters="\0")).map("".join)
_name = st.lists(st.sampled_from(list("$%\\\"'`;#[]*? =a")), min_size=1, max_size=8).map("".join)


@pytest.fixture(scope="module")
def machine(lab: Lab) -> Iterator[Machine]:
    made = lab.machine("odd")
    made.write(Path("/srv/show.py"), _SHOW)
    made.write(Path("/srv/try.py"), _TRY)
    yield made
    made.remove()


@settings(
    max_examples=25,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(_text, max_size=12), st.lists(_text, max_size=8), st.lists(_text, max_size=8), _name)
@example(["", " ", ";", "$HOME", "${HOME}", "$$", "%n", "%%", "a\\", '"', "'", "\n", "#x", "-", "~"], [], [], "a b ")
@example([], ["a\nb", "$X `id` \\", '"'], ["", "x=%n", "$HOME ${HOME}", "\\n", "#"], "x\\")
def test_words_variables_and_paths_arrive_as_they_are(
    machine: Machine, words: list[str], hidden: list[str], open_: list[str], name: str
) -> None:
    secret = {f"H{at}": value for at, value in enumerate(hidden)}
    plain = {f"O{at}": value for at, value in enumerate(open_)}
    folder = PLACE / name
    unit = [
        "[Service]",
        "Type=oneshot",
        f"WorkingDirectory={unitfile.path(str(folder))}",
        *(f"Environment={unitfile.word(f'{key}={value}')}" for key, value in plain.items()),
        f"EnvironmentFile={unitfile.pattern(str(folder / 'env'))}",
        f"ExecStart={unitfile.command(['/usr/bin/python3', '/srv/show.py', *words])}",
        "",
    ]
    written = [
        (str(folder / "env"), unitfile.environment(secret)),
        (str(UNITS / "odd.service"), "\n".join(unit)),
    ]
    seen = machine.ask("python3", "/srv/try.py", stdin=json.dumps(written))
    seen_words, environment, directory = json.loads(seen)
    assert seen_words == words
    assert {key: environment.get(key) for key in (*secret, *plain)} == {**secret, **plain}
    assert directory == str(folder)
