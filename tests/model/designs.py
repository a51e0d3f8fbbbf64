"""Every residual design, as changes to the tiny config; with its options where they change the program."""

from typing import Any

DESIGNS: dict[str, dict[str, Any]] = {
  'pre': {},
  'post': {'connection': 'post'},
  'sandwich': {'connection': 'sandwich'},
  'res_post': {'connection': 'res_post'},
  'deepnorm': {'connection': 'deepnorm'},
  'none': {'connection': 'none'},
  'hyper_connections': {'connection': 'hyper_connections:streams=3'},
  'hyper_connections-static': {'connection': 'hyper_connections:streams=2:dynamic=false'},
  'manifold_hyper_connections': {'connection': 'manifold_hyper_connections:streams=3'},
  'manifold_hyper_connections-lite': {'connection': 'manifold_hyper_connections:streams=3:lite=true'},
}
