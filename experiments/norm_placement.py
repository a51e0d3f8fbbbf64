"""Where should the norm be placed, and does the type of norm matter?

Command: python train.py --experiment=norm_placement
Time: 20 minutes on two cores of about 100 GFLOP/s each, for 55 runs. The 110 runs that tuned the learning rates took 35
minutes.

Bits per byte on the test split, five seeds, each variant at its best learning rate, with 95% intervals:

                   rate   bits per byte   learned   minus pre_rms
  pre_rms          8e-3   2.279           5/5
  pre_layer        4e-3   2.298           5/5       +0.019 [+0.011, +0.027]   inconclusive
  post_rms         4e-3   2.298           5/5       +0.020 [-0.011, +0.050]   inconclusive
  post_layer       4e-3   2.298           5/5       +0.020 [-0.001, +0.040]   inconclusive
  sandwich_rms     8e-3   2.279           5/5       +0.000 [-0.016, +0.017]   equivalent
  sandwich_layer   4e-3   2.275           5/5       -0.004 [-0.014, +0.007]   equivalent
  res_post_rms     2e-3   2.780           5/5       +0.502 [+0.441, +0.563]   worse
  res_post_layer   2e-3   2.783           5/5       +0.504 [+0.443, +0.566]   worse
  deepnorm_rms     8e-3   2.326           5/5       +0.048 [+0.033, +0.062]   worse
  deepnorm_layer   8e-3   2.330           5/5       +0.052 [+0.039, +0.064]   worse
  no_norm          4e-3   2.277           4/5       +0.000 [-0.019, +0.019]   unstable: one diverged

Validation loss at each learning rate, means of two other seeds, from experiments/tuned/norm_placement.csv (*: one of
the two learned; -: none did; x: diverged; the unigram model scores 4.489):

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

Only res_post is far behind, because it lacks QK norm: its sublayers read a residual stream that no norm bounds and that
grows with every branch, so queries and keys grow too. With --config.model.qk_norm=True (means of two seeds, validation
loss at 2e-3, 4e-3 and 8e-3) it reaches 2.381, 2.275 and 2.263, and pre_rms 2.461, 2.290 and 2.235. OLMo et al. 2024,
2 OLMo 2 Furious, combine the two.

The placement mainly determines the highest usable learning rate: without norms, one run in five diverges at 4e-3 and
all at 8e-3; Post-LN does not learn at 1.6e-2. The choice between RMSNorm and LayerNorm makes little difference.
"""

import itertools

from lab.core.experiment import Experiment

PLACEMENTS = ('pre', 'post', 'sandwich', 'res_post', 'deepnorm')

EXPERIMENT = Experiment(
  question='Where should the norm be placed, and does the type of norm matter?',
  variants={
    'pre_rms': {},
    **{
      f'{placement}_{norm}': {'model.connection': placement, 'model.norm': norm}
      for placement, norm in itertools.product(PLACEMENTS, ('rms', 'layer'))
      if (placement, norm) != ('pre', 'rms')
    },
    'no_norm': {'model.connection': 'none'},
  },
)
