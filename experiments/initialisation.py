"""Does Pre-Norm beat Post-LN, or does the scale of the branches at the start decide?

Command: python train.py --experiment=initialisation
         python -m experiments.reproduce --only=initialisation
Time: 8 minutes on two cores of about 100 GFLOP/s each, for 20 runs.

                        bits per byte   learned   minus baseline [95% interval]
  pre_depth_scale       2.275           5/5
  post_depth_scale      2.278           5/5       +0.003 [-0.034, +0.040]   inconclusive
  pre_no_depth_scale    2.323           5/5       +0.047 [+0.037, +0.058]   worse
  post_no_depth_scale   4.491           0/5       unigrams alone have 4.489

At learning rate 4e-3: with the depth scale the placement made no difference that five seeds show; without it
Post-LN learned nothing, and Pre-Norm did worse than with it.
"""

import numpy as np
from matplotlib.figure import Figure

from experiments.experiment import Experiment
from experiments.figure_style import VARIANT_COLOURS, new_figure
from experiments.grid import final_losses
from experiments.reproduction import Measured, Reproduction, at_least, between
from experiments.runs import ExperimentRuns
from experiments.statistics import MARGIN_BITS

EXPERIMENT = Experiment(
  question='Does Pre-Norm beat Post-LN, or does the scale of the branches at the start decide?',
  variants={
    'pre_depth_scale': {},
    'post_depth_scale': {'model.norm_placement': 'post'},
    'pre_no_depth_scale': {'model.init_depth_scale': False},
    'post_no_depth_scale': {'model.norm_placement': 'post', 'model.init_depth_scale': False},
  },
)


def read(found: ExperimentRuns) -> dict:
  """Final losses by seed and variant, and Post-LN minus Pre-Norm of the same seed, with the depth scale and without."""
  losses = {name: final_losses(found, name) for name in EXPERIMENT.variants}
  return {
    'unit': found.measure.unit,
    'losses': losses,
    **{scale: losses[f'post_{scale}'] - losses[f'pre_{scale}'] for scale in ('depth_scale', 'no_depth_scale')},
  }


def draw(measured: Measured) -> Figure:
  """Final loss of every seed: a line a seed from Pre-Norm to Post-LN, with the depth scale and without."""
  figure = new_figure(2.6)
  both = figure.subplots(1, 2, sharey=True)
  for axes, scale, title in zip(
    both, ('depth_scale', 'no_depth_scale'), ('depth scale', 'no depth scale'), strict=True
  ):
    pairs = np.array([measured['losses'][f'{placement}_{scale}'] for placement in ('pre', 'post')], float)
    for seed, pair in enumerate(pairs.T):
      axes.plot([0, 1], pair, color='#C0C0C0', lw=0.8, zorder=1, gid=f'seed {seed}')
    for place, placement in enumerate(('pre', 'post')):
      axes.plot([place] * len(pairs[place]), pairs[place], 'o', color=VARIANT_COLOURS[placement], ms=4, gid=placement)
    axes.set(title=title, xlim=(-0.5, 1.5))
    axes.set_xticks([0, 1], ['Pre-Norm', 'Post-LN'])
  both[0].set_ylabel(f'final validation loss ({measured["unit"]})')
  return figure


REPRODUCTION = Reproduction(
  claim='The scale of the branches at the start decides whether Post-LN trains as well as Pre-Norm.',
  source='A prototype of this project, one seed: Post-LN ahead by .1 to .15 with the depth scale, stuck without',
  expected=(
    between('depth_scale', 'with the depth scale: Post-LN minus Pre-Norm', -0.2, -MARGIN_BITS, over_seeds=True),
    at_least('no_depth_scale', 'without: the same', 1, over_seeds=True),
  ),
  seconds=600,
  draw=draw,
  caption=(
    'Final validation loss at learning rate 4e-3, 12 layers. Grey: the same seed under both placements. A run that '
    'learned nothing ends at the entropy of single bytes.'
  ),
  read=read,
  drift=0.02,
)
