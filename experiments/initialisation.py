"""Does Pre-Norm beat Post-LN, or does the scale of the branches at the start decide?

Command: python train.py --experiment=initialisation
Time: 8 minutes on two cores of about 100 GFLOP/s each, for 20 runs.

                        bits per byte   learned   minus baseline [95% interval]
  pre_depth_scale       2.275           5/5
  post_depth_scale      2.278           5/5       +0.003 [-0.034, +0.040]   inconclusive
  pre_no_depth_scale    2.323           5/5       +0.047 [+0.037, +0.058]   worse
  post_no_depth_scale   4.491           0/5       unigrams alone have 4.489

At learning rate 4e-3: with the depth scale the placement made no difference that five seeds show; without it
Post-LN learned nothing, and Pre-Norm did worse than with it.
"""

from experiments.experiment import Experiment

EXPERIMENT = Experiment(
  question='Does Pre-Norm beat Post-LN, or does the scale of the branches at the start decide?',
  variants={
    'pre_depth_scale': {},
    'post_depth_scale': {'model.norm_placement': 'post'},
    'pre_no_depth_scale': {'model.init_depth_scale': False},
    'post_no_depth_scale': {'model.norm_placement': 'post', 'model.init_depth_scale': False},
  },
)
