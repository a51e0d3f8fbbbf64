"""Connections: how each sublayer reads from the residual state and writes to it; one file per family of designs.

In: the residual state and the output of a branch. Out: the input of a branch, and the new state.
"""

from model.connections import norm_placement  # noqa: F401 - the first in every list

# isort: split
from model.connections import (  # noqa: F401 - each registers its designs
  attention_residuals,
  block_input,
  block_outputs,
  branch_scale,
  completep,
  embedding_scalars,
  gated_residual,
  hybrid_norm,
  hyper_connections,
  manifold_hyper_connections,
  mixed_placement,
  skipless,
  two_streams,
  value_residual,
)
from model.connections.base import CONNECTIONS, Connection, Ends, Site, connection

__all__ = ['CONNECTIONS', 'Connection', 'Ends', 'Site', 'connection']
