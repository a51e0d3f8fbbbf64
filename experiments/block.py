"""What does each decision of a modern Transformer block buy: where the norm sits, the gate, the residual?

Command: python train.py --experiment=block
Time: 8 minutes on two cores of about 100 GFLOP/s each, for 20 runs.

                bits per byte   learned   minus baseline [95% interval]
  baseline      2.275           5/5
  post_norm     2.278           5/5       +0.003 [-0.034, +0.040]   inconclusive
  relu          2.340           5/5       +0.064 [+0.053, +0.076]   worse
  no_residual   4.491           0/5       unigrams alone have 4.489

All at one learning rate, 4e-3, and one initialisation: see experiments/initialisation.py for what these decide.
"""

from experiments.experiment import Experiment

EXPERIMENT = Experiment(
  question='What does each decision of the block buy: where the norm sits, the gate, the residual?',
  variants={
    'baseline': {},  # pre-norm, RMSNorm, SwiGLU, residual
    'post_norm': {'model.norm_placement': 'post'},
    'relu': {'model.feed_forward': 'relu'},
    'no_residual': {'model.attention_residual': 0.0, 'model.feed_forward_residual': 0.0},
  },
)
