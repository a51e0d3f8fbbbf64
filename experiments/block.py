"""How much does each part of a modern Transformer block contribute: Pre-Norm, the gate, the residual?

Command: python train.py --experiment=block
Time: 8 minutes on two cores of about 100 GFLOP/s each, for 20 runs.

                learning rate   bits per byte (test)   learned   minus baseline [95% interval]
  baseline      8e-3            2.277                  5/5
  post_norm     4e-3            2.298                  5/5       +0.022 [-0.009, +0.053]   inconclusive
  relu          8e-3            2.335                  5/5       +0.059 [+0.045, +0.073]   worse
  no_residual   2e-3            4.491                  0/5       the unigram model scores 4.489

Each variant at its best learning rate (experiments/tuned/block.csv). With 4e-3 for all variants, on the validation
split, the differences are +0.003 [-0.034, +0.040] for post_norm and +0.064 [+0.053, +0.076] for relu. Post-LN needs the
lower rate: over two seeds it is 0.10 worse than the baseline at 8e-3, and does not learn at 1.6e-2, where the baseline
does. All variants share one initialisation; experiments/initialisation.py shows which results depend on it.
"""

from lab.core.experiment import Experiment

EXPERIMENT = Experiment(
  question='How much does each part of the block contribute: Pre-Norm, the gate, the residual?',
  variants={
    'baseline': {},  # pre-norm, RMSNorm, SwiGLU, residual
    'post_norm': {'model.connection': 'post'},
    'relu': {'model.feed_forward': 'relu'},
    'no_residual': {'model.attention_residual': 0.0, 'model.feed_forward_residual': 0.0},
  },
)
