"""What does each decision of a modern Transformer block buy: where the norm sits, the gate, the residual?

Command: python train.py --experiment=block
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
