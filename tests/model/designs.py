"""Every residual design, as changes to the tiny config; with its options where they change the program."""

from typing import Any

DESIGNS: dict[str, dict[str, Any]] = {
  'pre': {},
  'post': {'connection': 'post'},
  'sandwich': {'connection': 'sandwich'},
  'res_post': {'connection': 'res_post'},
  'deepnorm': {'connection': 'deepnorm'},
  'none': {'connection': 'none'},
}
