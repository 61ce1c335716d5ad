"""The kind `service`: a long-running command, as a unit of systemd or as processes that the agent finds again."""

from agent.kinds.service.logs import rotate_all
from agent.kinds.service.service import Service

__all__ = ["Service", "rotate_all"]
