"""The kind `package`: a distribution's package, installed without starting the daemons that it brings."""

from agent.kinds.package.package import Package

__all__ = ["Package"]
