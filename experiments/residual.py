"""How much of the skip path does a block need, and in which sublayer?

Command: python train.py --experiment=residual
"""

from experiments.experiment import Experiment

EXPERIMENT = Experiment(
  question='How much of the skip path does a block need, and in which sublayer?',
  variants={
    'residual_1': {},
    **{
      f'residual_{scale:g}': {'model.attention_residual': scale, 'model.feed_forward_residual': scale}
      for scale in (0.9, 0.5, 0.0)
    },
    'no_attention_residual': {'model.attention_residual': 0.0},
    'no_feed_forward_residual': {'model.feed_forward_residual': 0.0},
    'rezero': {'model.rezero': True},
  },
)
