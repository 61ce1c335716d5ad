"""The kind `service`: a long-running command as detached processes that the agent finds again."""

from agent.kinds.service.service import Service

__all__ = ["Service"]
