"""Where should the norm sit, and does its kind matter?

Command: python train.py --experiment=norm_placement --tune
Time: 55 runs, each as long as one of experiments/block.py, after 110 runs of 35 seconds that choose the rates.
Not run yet.
"""

import itertools

from experiments.experiment import Experiment

PLACEMENTS = ('pre', 'post', 'sandwich', 'res_post', 'deepnorm')

EXPERIMENT = Experiment(
  question='Where should the norm sit, and does its kind matter?',
  variants={
    'pre_rms': {},
    **{
      f'{placement}_{norm}': {'model.norm_placement': placement, 'model.norm': norm}
      for placement, norm in itertools.product(PLACEMENTS, ('rms', 'layer'))
      if (placement, norm) != ('pre', 'rms')
    },
    'no_norm': {'model.norm_placement': 'none'},
  },
)
