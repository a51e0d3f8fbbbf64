"""One wide head or several narrow ones, at equal width and parameters?

Command: python train.py --experiment=heads
"""

from experiments.experiment import Experiment

EXPERIMENT = Experiment(
  question='One wide head or several narrow ones, at equal width and parameters?',
  variants={
    'heads_4': {},
    **{f'heads_{heads}': {'model.num_heads': heads} for heads in (1, 2, 8)},
  },
  base={'model.num_heads': 4},
)
