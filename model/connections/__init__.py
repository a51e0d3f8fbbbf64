"""Connections: how each sublayer reads from the residual state and writes to it; one file per family of designs.

In: the residual state and the output of a branch. Out: the input of a branch, and the new state.
"""

from model.connections import hyper_connections, manifold_hyper_connections, norm_placement  # noqa: F401 - registers its designs
from model.connections.base import CONNECTIONS, Connection, Ends, Site, connection

__all__ = ['CONNECTIONS', 'Connection', 'Ends', 'Site', 'connection']
