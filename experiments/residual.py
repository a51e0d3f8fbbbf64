"""How much of the skip path does a block need, and in which sublayer?

Command: python train.py --experiment=residual
Time: 35 runs, each of which takes as long as a run of experiments/block.py.

                             bits per byte   learned   minus residual_1 [95% interval]
  residual_1                 2.275           5/5
  residual_0.9               2.306           5/5       +0.030 [+0.001, +0.060]   inconclusive, leaning towards worse
  residual_0.5               4.491           0/5       the unigram model scores 4.489
  residual_0                 4.491           0/5
  no_attention_residual      4.491           0/5
  no_feed_forward_residual   4.491           0/5
  rezero                     2.467           5/5       +0.192 [+0.161, +0.223]   worse

All at learning rate 4e-3. A model of twelve layers needs the skip path in both sublayers, at nearly full scale.
"""

from lab.core.experiment import Experiment

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
