"""Which norm placements learn a copy task in a deep model without warm-up?

Command: python train.py --experiment=copy_task
         python reproduce.py --only=copy_task
Time: 20 minutes on two cores of about 100 GFLOP/s each: 15 runs of 157 seconds.

Final loss in nats per symbol, five seeds each (uniform guessing: ln 64 = 4.159):

  pre        0 (under 1e-5 after 179,000 of 384,000 tokens)
  post       4.166 [4.164, 4.168]
  deepnorm   0

Reproduced at the reported learning rate; lower rates and a warm-up were not tried.
"""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import mean_curve
from lab.core.experiment import Experiment
from lab.core.reproduction import Measured, Reproduction, at_most, between
from lab.figures.figure_style import GREY, VARIANT_COLOURS, new_figure
from lab.reproduce.learning_rate_grid import final_losses

CHANCE = math.log(64)  # loss of uniform guessing, nats per symbol
LOWEST_DRAWN = 1e-7  # if every symbol is nearly certain, float32 rounds the loss to 0
PLACEMENTS = ('pre', 'post', 'deepnorm')

EXPERIMENT = Experiment(
  question='Which norm placements learn a copy task in a deep model without warm-up?',
  variants={name: {'model.connection': name} for name in PLACEMENTS},
  base={
    'model.num_layers': 16, 'model.d_model': 128, 'model.unroll': 1, 'model.vocab_size': 65,
    'model.init_depth_scale': False, 'data.task': 'copy', 'optimizer.learning_rate': 3e-4, 'optimizer.warmup_steps': 0,
    'optimizer.schedule': 'constant', 'optimizer.weight_decay': 0.0, 'optimizer.clip': 0.0, 'run.steps': 1500,
    'run.batch_size': 4, 'run.evaluations': 15,
  },
)  # fmt: skip


def read(found: ExperimentRuns) -> dict:
  """Final losses by seed in nats per symbol, and the mean validation curves."""
  curves = {name: mean_curve(found.of(name), found.metric) for name in PLACEMENTS}
  return {
    'losses': {name: final_losses(found, name) for name in PLACEMENTS},
    'curves': {name: {'tokens': list(curve.index), 'loss': list(curve)} for name, curve in curves.items()},
    **{name: final_losses(found, name) for name in PLACEMENTS},
  }


def draw(measured: Measured) -> Figure:
  """Mean validation loss against training tokens, and the final loss of each seed."""
  figure = new_figure(2.8)
  axes = figure.add_subplot()
  for name in PLACEMENTS:
    curve, colour = measured['curves'][name], VARIANT_COLOURS[name]
    losses = np.maximum(np.array(curve['loss'], float), LOWEST_DRAWN)
    axes.plot(curve['tokens'], losses, color=colour, lw=1.5, label=name, gid=name)
    finals = np.array(measured['losses'][name], float)
    last = max(curve['tokens'], default=0)
    axes.plot(
      [last] * len(finals), np.maximum(finals, LOWEST_DRAWN), 'o', color=colour, ms=4, mew=0, gid=f'{name}, seeds'
    )
  axes.axhline(CHANCE, color=GREY, lw=0.8, ls=(0, (4, 3)), gid='ln 64')
  axes.xaxis.set_major_formatter(EngFormatter(sep=''))
  axes.set(
    xlabel='training tokens', ylabel='validation loss (nats per symbol)', yscale='log', ylim=(LOWEST_DRAWN / 3, 30)
  )
  axes.legend(loc='center right')
  return figure


REPRODUCTION = Reproduction(
  claim='With 16 layers and no warm-up, Post-LN does not learn a copy task that Pre-LN and DeepNorm solve.',
  source='Reported for Adam at 3e-4, width 128, 64 symbols, 1,500 steps; depends on the learning rate',
  expected=(
    between(
      'post', 'Post-LN: final loss, nats per symbol (ln 64 = 4.159)', CHANCE - 0.02, CHANCE + 0.05, over_seeds=True
    ),
    at_most('pre', 'Pre-LN: final loss', 0.001, over_seeds=True),
    at_most('deepnorm', 'DeepNorm: final loss', 0.001, over_seeds=True),
  ),
  seconds=1200,
  draw=draw,
  caption=(
    'Validation loss of copying strings over an alphabet of 64 symbols. Lines: means; points: final loss of each seed; '
    'dashed: ln 64. Losses below 1e-7 are plotted at 1e-7. The ratio of first-layer to last-layer gradient at '
    'initialisation does not predict which variant trains.'
  ),
  read=read,
  drift=0.1,
)
