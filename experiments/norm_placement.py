"""Where should the norm sit, and does its kind matter?

Command: python train.py --experiment=norm_placement
Time: 20 minutes on two cores of about 100 GFLOP/s each, for 55 runs. The 110 that chose the rates took 35.

Final validation loss in bits per byte at each rate, means of two seeds (* one of the two learned; - none; x diverged;
unigrams alone have 4.489), as experiments/tuned/norm_placement.csv has it:

                   1e-3    2e-3    4e-3    8e-3    1.6e-2
  pre_rms          2.608   2.383   2.264   2.254   2.366
  pre_layer        2.611   2.380   2.263   2.264   2.367
  post_rms         2.609   2.382   2.255   2.433   -
  post_layer       2.615   2.383   2.261   2.387   -
  sandwich_rms     2.479   2.323   2.250   2.248   2.383
  sandwich_layer   2.485   2.323   2.245   2.259   2.362
  res_post_rms     2.797   2.769   2.803   2.929   3.175
  res_post_layer   2.812   2.763   2.848   2.931   3.276
  deepnorm_rms     2.892   2.637   2.421   2.284   3.498*
  deepnorm_layer   2.888   2.637   2.421   2.300   2.667
  no_norm          2.523   2.361   2.238   x       x

Each at its best rate, only res_post falls far behind (its norm also takes away the depth scale of the branches;
whether that is why was not tried). What a placement decides here is how high the rate may be: without norms 8e-3
diverges, where the rate below gave the lowest loss of all; Post-LN learns nothing at 1.6e-2. The kind of norm matters
little.
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
