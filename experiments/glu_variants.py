"""Does a gate in the feed-forward help at equal parameter count? Compares the eight activations of Shazeer.

Shazeer 2020, GLU Variants Improve Transformer, table 1: held-out log-perplexity at 65,536 steps ReLU 1.997, GELU 1.983,
Swish 1.994, GLU 1.982, Bilinear 1.960, ReGLU 1.953, GEGLU 1.942, SwiGLU 1.944; standard deviation .003 to .010.

Command: python train.py --experiment=glu_variants
         python reproduce.py --only=glu_variants
Time: 12 minutes on two cores of about 100 GFLOP/s each: 40 runs of 35 seconds.

              bits per byte   minus relu [95% interval]
  relu        2.340
  gelu        2.338           -0.002 [-0.013, +0.009]   equivalent
  silu        2.402           +0.063 [+0.050, +0.075]   worse
  glu         2.414           +0.074 [+0.062, +0.087]   worse
  bilinear    2.296           -0.044 [-0.071, -0.016]   inconclusive, leaning towards better
  reglu       2.283           -0.057 [-0.077, -0.037]   better
  geglu       2.261           -0.079 [-0.099, -0.058]   better
  swiglu      2.275           -0.064 [-0.076, -0.053]   better

Five seeds at learning rate 4e-3, on the validation split. Reproduced: gating helps, and GEGLU and SwiGLU are best. Not
reproduced: the sigmoid gate, `glu`, is last of the eight here but mid-table in the paper. No other learning rate was
tried. Squared ReLU is not in the paper; --sweep='model.feed_forward=relu,relu2' compares it.
"""

import numpy as np
from matplotlib.figure import Figure

from lab.analysis.experiment_runs import ExperimentRuns
from lab.core.experiment import Experiment
from lab.core.reproduction import Measured, Reproduction, at_most, exactly
from lab.figures.figure_style import BLACK, COLOURS, GREY, new_figure
from lab.reproduce.learning_rate_grid import final_losses
from model.activations import GATED

PUBLISHED = {
  'relu': 1.997, 'gelu': 1.983, 'silu': 1.994, 'glu': 1.982, 'bilinear': 1.960, 'reglu': 1.953, 'geglu': 1.942,
  'swiglu': 1.944,
}  # fmt: skip

EXPERIMENT = Experiment(
  question='Does a gate in the feed-forward help at equal parameter count?',
  variants={name: {'model.feed_forward': name} for name in PUBLISHED},
  base={'run.evaluations': 1},
)


def read(found: ExperimentRuns) -> dict:
  """Final losses by variant and seed, their difference to ReLU, and parameter counts relative to ReLU."""
  losses = {name: final_losses(found, name) for name in PUBLISHED}
  parameters = {run.variant: run.result['parameters'] for run in found.runs}
  return {
    'unit': found.metric.unit,
    'losses': losses,
    'parameters': [parameters[name] / parameters['relu'] for name in PUBLISHED],
    'gated_minus_relu': np.mean([losses[name] for name in PUBLISHED if name in GATED], 0) - losses['relu'],
    **{f'{name}_minus_relu': losses[name] - losses['relu'] for name in ('geglu', 'swiglu')},
  }


def draw(measured: Measured) -> Figure:
  """One row per variant: seeds as points, their mean as a bar."""
  figure = new_figure(2.8)
  axes = figure.add_subplot()
  for row, name in enumerate(PUBLISHED):
    values = np.array(measured['losses'][name], float)
    colour = COLOURS[0] if name in GATED else BLACK
    axes.plot(values, row + np.linspace(-0.2, 0.2, len(values)), 'o', color=colour, ms=3.5, mew=0, gid=name)
    axes.plot([values.mean()], [row], '|', color=colour, ms=14, mew=1.6, gid=f'{name}, mean')
  axes.axvline(np.mean(measured['losses']['relu']), color=GREY, lw=0.8, ls=(0, (4, 3)))
  axes.set(xlabel=f'final validation loss ({measured["unit"]})', ylim=(len(PUBLISHED) - 0.5, -0.5))
  axes.set_yticks(range(len(PUBLISHED)), list(PUBLISHED))
  axes.grid(visible=False, axis='y')
  return figure


REPRODUCTION = Reproduction(
  claim='At equal parameter count, gated feed-forwards reach a lower loss than ReLU, and GEGLU and SwiGLU the lowest.',
  source='Shazeer 2020, GLU Variants Improve Transformer, table 1',
  expected=(
    exactly('parameters', 'parameter count over that of ReLU', (1,) * len(PUBLISHED), 0.002),
    at_most('gated_minus_relu', 'mean of the five gated variants minus ReLU', 0, over_seeds=True),
    at_most('geglu_minus_relu', 'GEGLU minus ReLU (published: -0.055 nats)', 0, over_seeds=True),
    at_most('swiglu_minus_relu', 'SwiGLU minus ReLU (published: -0.053 nats)', 0, over_seeds=True),
  ),
  seconds=700,
  draw=draw,
  caption=(
    'Final validation loss by activation. Points: seeds, paired across activations; bars: means. Vermilion: gated; '
    'dashed: mean of ReLU. All variants at the same learning rate.'
  ),
  read=read,
  drift=0.02,
)
