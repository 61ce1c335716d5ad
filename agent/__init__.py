"""A node agent: one file that raises the substrate it carries, joins a mesh and holds what it is told to."""

__version__ = "0.1.0"
