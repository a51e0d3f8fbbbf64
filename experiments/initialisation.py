"""Does Pre-Norm beat Post-LN, or does that depend on the scale of the branches at initialisation?

Command: python train.py --experiment=initialisation
         python reproduce.py --only=initialisation
Time: 17 minutes on two cores of about 100 GFLOP/s each: 60 runs of 33 seconds.

Mean final loss in bits per byte at each learning rate, and Post-LN minus Pre-Norm with its 95% interval. In
parentheses: how many of five seeds learned, if not all did. The unigram model scores 4.489.

                        1e-3                      4e-3                      8e-3
  pre_depth_scale       2.613                     2.275                     2.258
  post_depth_scale      2.596                     2.278                     2.805
    minus pre           -0.017 [-0.032, -0.002]   +0.003 [-0.034, +0.040]   +0.547 [-0.287, +1.381]
  pre_no_depth_scale    2.697                     2.323                     2.280
  post_no_depth_scale   3.906 (4)                 4.491 (0)                 4.492 (0)
    minus pre           +1.209 [+0.747, +1.671]   +2.168 [+2.156, +2.181]   +2.212 [+2.198, +2.225]

Not reproduced: with the depth scale, Post-LN is better only at 1e-3, by less than the margin. It is not better with
each placement at its best rate (+0.020 [-0.008, +0.049]), and at 8e-3 its seeds scatter widely (2.33 to 3.98).
Reproduced: without the depth scale, Post-LN does not learn at 4e-3, and learns far less than Pre-Norm at 1e-3. So the
depth scale determines whether Post-LN trains, but does not make it better.
"""

from matplotlib.figure import Figure

from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import MARGIN_BITS
from lab.core.experiment import Changes, Experiment
from lab.core.reproduction import Measured, Reproduction, at_least, between
from lab.figures.figure_style import VARIANT_COLOURS, new_figure
from lab.reproduce.learning_rate_grid import losses_by_rate, plot_losses_by_rate, set_rate_ticks, variants_by_rate

RATES = (1e-3, 4e-3, 8e-3)
SETTINGS: dict[str, Changes] = {
  'pre_depth_scale': {},
  'post_depth_scale': {'model.connection': 'post'},
  'pre_no_depth_scale': {'model.init_depth_scale': False},
  'post_no_depth_scale': {'model.connection': 'post', 'model.init_depth_scale': False},
}

EXPERIMENT = Experiment(
  question='Does Pre-Norm beat Post-LN, or does that depend on the scale of the branches at initialisation?',
  variants=variants_by_rate(SETTINGS, RATES),
  base={'run.evaluations': 1},
)


def read(found: ExperimentRuns) -> dict:
  """Losses by setting, (seeds, rates), and Post-LN minus Pre-Norm by seed: at 4e-3, and each at its best rate."""
  losses = {name: losses_by_rate(found, name, RATES) for name in SETTINGS}
  at_4e_3 = {
    scale: (losses[f'post_{scale}'] - losses[f'pre_{scale}'])[:, RATES.index(4e-3)]
    for scale in ('depth_scale', 'no_depth_scale')
  }
  best = losses['post_depth_scale'].min(1) - losses['pre_depth_scale'].min(1)
  return {'rates': RATES, 'unit': found.metric.unit, 'losses': losses, **at_4e_3, 'best': best}


def draw(measured: Measured) -> Figure:
  """Final loss against learning rate for both placements, with and without the depth scale."""
  figure = new_figure(2.7)
  panels = figure.subplots(1, 2, sharey=True)
  for axes, scale in zip(panels, ('depth_scale', 'no_depth_scale'), strict=True):
    for placement, name in (('pre', 'Pre-Norm'), ('post', 'Post-LN')):
      losses = measured['losses'][f'{placement}_{scale}']
      plot_losses_by_rate(axes, measured['rates'], losses, name, VARIANT_COLOURS[placement])
    axes.set(title=scale.replace('_', ' '))
    set_rate_ticks(axes, measured['rates'])
  panels[0].set_ylabel(f'final validation loss\n({measured["unit"]})')
  panels[0].legend()
  return figure


REPRODUCTION = Reproduction(
  claim='The scale of the branches at initialisation determines whether Post-LN trains as well as Pre-Norm.',
  source='A prototype of this project, one seed: Post-LN is 0.1 to 0.15 better with depth scale, and fails without',
  expected=(
    between(
      'depth_scale', 'with the depth scale, at 4e-3: Post-LN minus Pre-Norm', -0.2, -MARGIN_BITS, over_seeds=True
    ),
    between('best', 'with the depth scale, each at its best rate', -0.2, -MARGIN_BITS, over_seeds=True),
    at_least('no_depth_scale', 'without the depth scale, at 4e-3: Post-LN minus Pre-Norm', 1, over_seeds=True),
  ),
  seconds=990,
  draw=draw,
  caption=(
    'Final validation loss against learning rate, 12 layers. Points: seeds; lines: means. A run that did not learn '
    'ends at the unigram entropy.'
  ),
  read=read,
  drift=0.02,
)
