"""The command line: arguments are read into frozen values, one call does the work, and what it gave is printed.

Exit codes: 0 fine, 1 nothing was done because something is wrong, 2 something of it failed. No traceback reaches a
user: what the program says is a sentence.
"""

from __future__ import annotations

import os
import sys

from agent.cli.arguments import build_parser
from agent.errors import AgentError


def main(argv: list[str]) -> int:
    """Run the command in `argv` (without the program's name) and return its exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except AgentError as error:
        print(f"agent: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains while it ends
        return 0
    except Exception as error:
        if os.environ.get("AGENT_TRACE"):
            raise
        print(
            f"agent: an error of the agent's own ({type(error).__name__}: {error}); "
            "please report it with what AGENT_TRACE=1 prints",
            file=sys.stderr,
        )
    return 1
