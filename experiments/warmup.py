"""Which norm placement needs a learning-rate warm-up?

Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, figure 2 (IWSLT14: Post-LN BLEU 8.45 without
warm-up, about 34 with; Pre-LN about 34 without).

Command: python train.py --experiment=warmup
         python reproduce.py --only=warmup
Time: 22 minutes on two cores of about 100 GFLOP/s each: 80 runs of 33 seconds.

Mean final loss of five seeds in bits per byte (*: none learned; the unigram model scores 4.489). Cost: loss without
warm-up minus loss with it, each at its best rate, with its 95% interval:

                    2.5e-4   5e-4    2e-3     8e-3     cost
  pre_warmup        3.413    3.005   2.459    2.281
  pre_no_warmup     3.405    2.995   2.452    2.323    +0.043 [+0.027, +0.058]
  post_warmup       3.857    3.499   4.491*   4.492*
  post_no_warmup    3.836    3.554   4.491*   4.492*   +0.055 [-0.047, +0.156]

Not reproduced: Pre-Norm, too, is worse without warm-up, by more than the margin, though only at the highest rate; at
lower rates it learns slightly faster without it. Inconclusive: the cost for Post-LN. Without the depth scale, twelve
layers of Post-LN barely train at the two lowest rates and not at all above, with or without a warm-up of 20 steps, and
five seeds do not show whether it helps.
"""

from matplotlib.figure import Figure

from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import MARGIN_BITS
from lab.core.experiment import Changes, Experiment
from lab.core.reproduction import Measured, Reproduction, at_least, at_most
from lab.figures.figure_style import VARIANT_COLOURS, new_figure
from lab.reproduce.learning_rate_grid import losses_by_rate, plot_losses_by_rate, set_rate_ticks, variants_by_rate

RATES = (2.5e-4, 5e-4, 2e-3, 8e-3)
SETTINGS: dict[str, Changes] = {
  'pre_warmup': {},
  'pre_no_warmup': {'optimizer.warmup_steps': 0},
  'post_warmup': {'model.connection': 'post'},
  'post_no_warmup': {'model.connection': 'post', 'optimizer.warmup_steps': 0},
}

EXPERIMENT = Experiment(
  question='Which norm placement needs a learning-rate warm-up?',
  variants=variants_by_rate(SETTINGS, RATES),
  base={'optimizer.warmup_steps': 20, 'model.init_depth_scale': False, 'run.evaluations': 1},
)


def read(found: ExperimentRuns) -> dict:
  """Losses by setting, (seeds, rates), and by seed the cost of no warm-up for each placement at its best rates."""
  losses = {name: losses_by_rate(found, name, RATES) for name in SETTINGS}
  best = {name: values.min(1) for name, values in losses.items()}
  return {
    'rates': RATES,
    'unit': found.metric.unit,
    'losses': losses,
    **{f'{p}_cost': best[f'{p}_no_warmup'] - best[f'{p}_warmup'] for p in ('pre', 'post')},
  }


def draw(measured: Measured) -> Figure:
  """Final loss against learning rate: seeds as points, means as lines, dashed without warm-up."""
  figure = new_figure(2.9)
  axes = figure.add_subplot()
  for name in SETTINGS:
    placement, _, setting = name.partition('_')
    line = '--' if setting == 'no_warmup' else '-'
    losses, label, colour = measured['losses'][name], name.replace('_', ' '), VARIANT_COLOURS[placement]
    plot_losses_by_rate(axes, measured['rates'], losses, label, colour, linestyle=line)
  axes.set_ylabel(f'final validation loss\n({measured["unit"]})')
  set_rate_ticks(axes, measured['rates'])
  figure.legend(*axes.get_legend_handles_labels(), loc='outside lower center', ncols=2)
  return figure


REPRODUCTION = Reproduction(
  claim='Post-LN needs a learning-rate warm-up, but Pre-LN does not.',
  source='Xiong et al. 2020, figure 2',
  expected=(
    at_least(
      'post_cost', 'Post-LN: loss without warm-up minus with, each at its best rate', MARGIN_BITS, over_seeds=True
    ),
    at_most('pre_cost', 'Pre-LN: loss without warm-up minus with', MARGIN_BITS, over_seeds=True),
  ),
  seconds=1320,
  draw=draw,
  caption=(
    'Final validation loss against learning rate, with a warm-up of 20 of 300 steps and without; no depth scale. '
    'Points: seeds; lines: means. A diverged run counts with its initial loss.'
  ),
  read=read,
  drift=0.02,
)
