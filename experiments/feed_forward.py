"""Which activation, and does a gate help at equal parameters?

After Shazeer 2020, GLU Variants Improve Transformer.
Command: python train.py --experiment=feed_forward
Time: 45 runs, each as long as one of experiments/block.py. For all but relu2 experiments/glu_variants.py has the table.
"""

from lab.core.experiment import Experiment

EXPERIMENT = Experiment(
  question='Which activation, and does a gate help at equal parameters?',
  variants={
    'swiglu': {},
    **{
      name: {'model.feed_forward': name}
      for name in ('relu', 'gelu', 'silu', 'relu2', 'glu', 'geglu', 'reglu', 'bilinear')
    },
  },
)
