"""Does Pre-Norm beat Post-LN, or does the scale of the branches at the start decide?

Command: python train.py --experiment=initialisation
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
