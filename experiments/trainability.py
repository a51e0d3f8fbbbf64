"""At which depths and learning rates does a model learn, with Pre-Norm, with Post-LN and without a residual?

Command: python train.py --experiment=trainability
         python reproduce.py --only=trainability
Time: 14 minutes on two cores of about 100 GFLOP/s each: 135 runs of 6, 10 or 16 seconds.

d_model 32: mean final loss of five seeds in bits per byte (*: none learned; all five did in every other entry; the
unigram model scores 4.489):

                layers   5e-4     2e-3     8e-3
  pre               3    3.76     3.03     2.65
                    6    3.65     2.91     2.54
                   12    3.53     2.82     2.46
  post              3    3.76     3.01     2.61
                    6    3.64     2.90     2.50
                   12    3.53     2.80     2.46
  no_residual       3    4.57*    4.27     4.48*
                    6    4.58*    4.49*    4.49*
                   12    4.58*    4.49*    4.49*

Reproduced. Without a residual, a model of three layers learns a little at one of three rates, and no deeper model
learns. With the depth scale and at this width, Post-LN trains wherever Pre-Norm does.
"""

import itertools

import numpy as np
from matplotlib.figure import Figure

from lab.analysis import wording
from lab.analysis.experiment_runs import ExperimentRuns
from lab.core.experiment import Changes, Experiment
from lab.core.reproduction import Measured, Reproduction, at_least, exactly
from lab.figures.figure_style import BLACK, new_figure
from lab.reproduce.learning_rate_grid import final_losses, variant_name, variants_by_rate

DEPTHS = (3, 6, 12)
RATES = (5e-4, 2e-3, 8e-3)
CONNECTIONS: dict[str, Changes] = {
  'pre': {},
  'post': {'model.connection': 'post'},
  'no_residual': {'model.attention_residual': 0.0, 'model.feed_forward_residual': 0.0},
}

EXPERIMENT = Experiment(
  question='At which depths and learning rates does a model learn?',
  variants=variants_by_rate(
    {
      f'{name}_{depth}': {**changes, 'model.num_layers': depth}
      for (name, changes), depth in itertools.product(CONNECTIONS.items(), DEPTHS)
    },
    RATES,
  ),
  base={'model.d_model': 32, 'model.unroll': 1, 'run.evaluations': 1},
)


def read(found: ExperimentRuns) -> dict:
  """Mean final loss and share of runs that learned, (depths, rates), with Pre-Norm, Post-LN and without residual."""
  loss, share = {}, {}
  for name in CONNECTIONS:
    variants = [[variant_name(f'{name}_{depth}', rate) for rate in RATES] for depth in DEPTHS]
    loss[name] = np.array([[final_losses(found, variant).mean() for variant in row] for row in variants])
    share[name] = np.array([
      [np.mean([run.learned for run in found.of(variant)]) for variant in row] for row in variants
    ])  # fmt: skip
  return {
    'unit': found.metric.unit,
    'loss': loss,
    'share': share,
    'pre': share['pre'].min(),
    'no_residual': share['no_residual'][DEPTHS.index(12) :].max(),
    'no_residual_3': share['no_residual'][0].max(),
  }


def draw(measured: Measured) -> Figure:
  """Heat maps of the mean final loss by depth and rate, with the share of runs that learned if not all did."""
  figure = new_figure(2.3)
  panels = figure.subplots(1, len(CONNECTIONS), sharey=True)
  losses = np.concatenate([np.ravel(np.array(measured['loss'][name], float)) for name in CONNECTIONS])
  limits = {'vmin': float(losses.min()), 'vmax': float(losses.max())}
  for axes, name in zip(panels, CONNECTIONS, strict=True):
    values, shares = np.array(measured['loss'][name], float), np.array(measured['share'][name], float)
    image = axes.imshow(values, cmap='cividis', origin='lower', aspect='auto', **limits)
    for (row, column), share in np.ndenumerate(shares):
      if share < 1:
        colour = BLACK if values[row, column] > np.mean(list(limits.values())) else 'white'
        axes.text(column, row, f'{share:.0%}', ha='center', va='center', fontsize=7, color=colour)
    axes.set(title=name.replace('_', ' '), xlabel='learning rate')
    axes.set_xticks(range(len(RATES)), map(wording.format_compact, RATES))
    axes.grid(visible=False)
  panels[0].set_yticks(range(len(DEPTHS)), [str(depth) for depth in DEPTHS])
  panels[0].set_ylabel('layers')
  figure.colorbar(image, ax=panels, label=f'final loss\n({measured["unit"]})')
  return figure


REPRODUCTION = Reproduction(
  claim='With Pre-Norm and a residual, every depth trains; without a residual, deep models learn at no learning rate.',
  source='He et al. 2016, Identity Mappings in Deep Residual Networks, table 1 (models without shortcuts fail)',
  expected=(
    exactly('pre', 'Pre-Norm: smallest share of runs that learned, over depths and rates', 1),
    exactly('no_residual', 'no residual, 12 layers: largest share of runs that learned', 0),
    at_least('no_residual_3', 'no residual, 3 layers: largest share of runs that learned', 0.5),
  ),
  seconds=820,
  draw=draw,
  caption=(
    'Mean final validation loss by depth and learning rate. Percentages: share of runs that learned (ended better than '
    'the unigram entropy), if not all did. A diverged run counts with its initial loss.'
  ),
  read=read,
  drift=0.05,
)
