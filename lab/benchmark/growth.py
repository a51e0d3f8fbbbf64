"""What grows, and what should not: attention with the length of a sequence, compilation with the number of layers."""

import functools

import jax
import jax.numpy as jnp
from rich.table import Table

from lab.benchmark.sizes import SIZES
from lab.benchmark.turns import prepare, prepare_step, take_turns
from lab.cli.tables import new_table
from model.kernels.blocked_attention import blocked_attention
from model.kernels.plain_attention import plain_attention

LENGTHS, TOKENS = (256, 512, 1024, 2048, 4096), 4096
HEADS, HEAD_DIM = 8, 32  # as in `medium`
DEPTHS = (6, 12, 24, 48, 96)


def attention_table(turns: int) -> Table:
  """Attention alone, forward and backward, at so many tokens in ever fewer and longer sequences."""
  columns = ('positions', 'sequences', 'plain ms', 'blocked ms', 'speed', 'plain MB', 'blocked MB')
  table = new_table('causal attention, forward and backward: the plain form and blocks', columns, left=0)
  for length in LENGTHS:
    batch = TOKENS // length
    q, k, v, g = jax.random.normal(jax.random.key(0), (4, batch, length, HEADS, HEAD_DIM))
    plain, blocked = (
      prepare(kernel.__name__, functools.partial(_gradients, kernel), q, k, v, g)
      for kernel in (plain_attention, blocked_attention)
    )
    take_turns([plain, blocked], turns, 2)
    table.add_row(
      f'{length:,}', str(batch), f'{plain.median * 1e3:.1f}', f'{blocked.median * 1e3:.1f}',
      f'x{plain.median / blocked.median:.2f}', f'{plain.temporary_bytes / 1e6:.1f}',
      f'{blocked.temporary_bytes / 1e6:.1f}',
    )  # fmt: skip
  return table


def _gradients(kernel, q, k, v, g):
  out, pull_back = jax.vjp(lambda q, k, v: kernel(q, k, v, True), q, k, v)
  return out, pull_back(g.astype(jnp.float32))


def depth_table() -> Table:
  """The time that compiling a training step takes, by depth, where layers are scanned."""
  table = new_table('compiling a training step of width 64, layers scanned (model.unroll=1)', ('layers', 's', 'times'))
  first = 0.0
  for depth in DEPTHS:
    step = prepare_step(str(depth), SIZES['small'].replace({'model.num_layers': depth, 'model.unroll': 1}))
    first = first or step.compile_seconds
    table.add_row(str(depth), f'{step.compile_seconds:.2f}', f'{step.compile_seconds / first:.2f}')
  return table
