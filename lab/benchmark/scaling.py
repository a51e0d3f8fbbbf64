"""Measures how attention scales with the sequence length, and compilation with the number of layers."""

from rich.table import Table

from lab.benchmark.cases import ENVIRONMENT, SIZES, training_case
from lab.benchmark.result_table import Row, result_table
from lab.benchmark.trials import Case, run_trials

LENGTHS, TOKENS = (256, 512, 1024, 2048, 4096), 4096
HEADS, HEAD_DIM = 8, 32  # as in `medium`
DEPTHS = (6, 12, 24, 48, 96)


def attention_table(trials: int, core: int | None) -> Table:
  """Plain and blocked attention on the same number of tokens, in fewer and longer sequences."""
  rows = []
  for length in LENGTHS:
    batch = TOKENS // length
    cases = [
      Case(kernel, {'attention': kernel, 'shape': [batch, length, HEADS, HEAD_DIM]}, cores=(core,),
           environment=ENVIRONMENT)
      for kernel in ('plain', 'blocked')
    ]  # fmt: skip
    plain, blocked = run_trials(cases, trials)
    rows += [Row(plain, f'{length:,} x {batch}', plain), Row(blocked, '', plain)]
  return result_table(
    'causal attention, forward and backward, by positions x sequences; reference: plain attention', rows
  )


def compilation_table(core: int | None) -> Table:
  """Compile time and memory of a training step by depth, with scanned layers."""
  rows = []
  for depth in DEPTHS:
    config = SIZES['small'].replace({'model.num_layers': depth, 'model.unroll': 1})
    rows += [Row(result) for result in run_trials([training_case(f'{depth} layers', config, (core,))], trials=0)]
  return result_table('compiling a training step of d_model 64 with scanned layers (model.unroll=1)', rows)
