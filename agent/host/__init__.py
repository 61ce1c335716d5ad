"""The machine underneath. Its rooms are imported as modules: `from agent.host import files`."""
