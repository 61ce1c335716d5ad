"""`agent up` of this tree as a process: what it is asked is JSON, and the link's times are the test's to choose.

The join token, if there is one, comes by standard input. The command line can set the first of the times only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agent.bundle import open_bundle
from agent.cli.steps import print_line, print_step
from agent.errors import AgentError
from agent.node.link import Manner
from agent.node.plans import Asked
from agent.node.running import Voice, up
from agent.token import parse_token


def main(asked: str) -> int:
    wanted = json.loads(asked)
    file = Path(wanted["file"])
    token = sys.stdin.read()
    try:
        return up(
            Asked(
                state=Path(wanted["state"]),
                bundle=open_bundle(file),
                running_file=file,
                name=wanted["name"],
                token=parse_token(token) if token else None,
                settings=wanted["settings"],
            ),
            Manner(**wanted["manner"]),
            Voice(print_line, print_step, lambda plan: None),
            lambda state: None,
        )
    except AgentError as error:
        print(f"agent: {error}", flush=True)
        return 1


sys.exit(main(sys.argv[1]))
