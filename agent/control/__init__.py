"""The control plane: who belongs to the mesh, what each node should hold, and what it said it holds.

It is the broker's one administrator and the one consumer of the queue `control`. A node states; this room
writes.
"""

from __future__ import annotations
