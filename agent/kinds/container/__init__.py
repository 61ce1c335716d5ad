"""The kind `container`: a container of podman's or docker's, replaced only when what is declared of it changed."""

from agent.kinds.container.container import Container

__all__ = ["Container"]
