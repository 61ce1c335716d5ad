"""`python -m agent`: the agent from its source tree."""

from __future__ import annotations

import sys

from agent.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
