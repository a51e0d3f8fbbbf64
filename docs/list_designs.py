"""Writes docs/designs.md: every residual design, its equation, source and options, from the classes that implement them.

Command: python -m docs.list_designs
"""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

from model.connections import CONNECTIONS

PAGE = Path(__file__).with_name('designs.md')
HEAD = """# Residual designs

`model.connection` chooses how each sublayer reads from the residual state and writes to it:

```
python train.py --connection=hyper_connections --name=mine
python train.py --sweep=model.connection=pre,attention_residuals,hyper_connections:streams=2
python inspect_gradients.py --config=configs/tiny.py --connection=keel --depths=4,8,16,32
python -m lab.benchmark --designs --connections=hyper_connections,attention_residuals --size=small
```

Options follow the name, separated by colons. F is attention or feed-forward, N and M are norms, a is the residual scale, x the stream before a sublayer, l the index of a sublayer or block, and L the number of blocks. Every design has one file per family in `model/connections/`, which states its initial values and what is left out of the source; a design of your own is [one file](your_own_idea.md) anywhere.

The gradient is split as ever: what the new state takes from the old one directly counts as skip path, and what the branch reads as branch. For designs with several streams or sources, the two are summed over all of them, and the inspector also draws who reads whom.

| `model.connection` | update, source | options and their defaults |
|---|---|---|
"""
FOOT = """
Related switches are `model.norm=dyt` and `derf`, elementwise functions in the place of norms; `model.attention_gate`, which multiplies the heads by a sigmoid of the input; `model.attention_sink`, a learned logit beside the keys; `model.rezero`; `model.parallel`; and `model.init_depth_scale`, which hides the effect of some designs if it is on.
"""


def page() -> str:
  """The text of docs/designs.md."""
  rows = []
  for name, design in CONNECTIONS.items():
    first = (inspect.getdoc(design) or '').splitlines()[0].replace('|', '\\\\|')
    options = [f'`{field.name}={_format(field.default)}`' for field in dataclasses.fields(design.Options)]
    rows.append(f'| `{name}` | {first} | {", ".join(options)} |\n')
  return HEAD + ''.join(rows) + FOOT


def _format(value: Any) -> str:
  return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == '__main__':
  PAGE.write_text(page(), 'utf8')
