"""Is one wide attention head better than several narrow ones, at equal d_model and parameter count?

Command: python train.py --experiment=heads
Time: about that of experiments/block.py, which has the same number of runs and FLOPs.

            bits per byte   learned   minus baseline [95% interval]
  heads_4   2.275           5/5
  heads_1   2.259           5/5       -0.017 [-0.031, -0.003]   inconclusive, leaning towards better
  heads_2   2.261           5/5       -0.015 [-0.027, -0.003]   inconclusive, leaning towards better
  heads_8   2.343           5/5       +0.068 [+0.045, +0.091]   worse
"""

from lab.core.experiment import Experiment

EXPERIMENT = Experiment(
  question='Is one wide attention head better than several narrow ones, at equal d_model and parameter count?',
  variants={
    'heads_4': {},
    **{f'heads_{heads}': {'model.num_heads': heads} for heads in (1, 2, 8)},
  },
  base={'model.num_heads': 4},
)
