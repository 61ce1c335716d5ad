"""The command line: arguments are read into frozen values, one call does the work, and what it gave is printed.

Exit codes: 0 fine, 1 nothing was done because something is wrong, 2 something of it failed. No traceback reaches a
user: what the program says is a sentence.
"""

from __future__ import annotations

import os
import sys

from agent.cli.output import drop_output, finish
from agent.errors import AgentError


def main(argv: list[str]) -> int:
    """Run the command in `argv` (without the program's name) and return its exit code."""
    code: int = 0
    try:
        if argv == ["--version"]:
            from agent.cli.version import version

            print(version())
            finish()
            return 0
        from agent.cli.arguments import build_parser

        arguments = build_parser(argv).parse_args(argv)
        code = arguments.run(arguments)
        finish()
        return code
    except AgentError as error:
        print(f"agent: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read this has read enough
        drop_output()
        return code
    except Exception as error:
        if os.environ.get("AGENT_TRACE"):
            raise
        print(
            f"agent: an error of the agent's own ({type(error).__name__}: {error}); "
            "please report it with what AGENT_TRACE=1 prints",
            file=sys.stderr,
        )
    return 1
