"""Over how wide a range of learning rates does a model train, with and without QK norm, and under Post-LN?

Wortsman et al. 2023, Small-scale proxies for large-scale Transformer training instabilities, figure 1.

Command: python train.py --experiment=lr_sensitivity
         python reproduce.py --only=lr_sensitivity
Time: 13 minutes on two cores of about 100 GFLOP/s each: 105 runs of 13 seconds, and 21 programs to compile.

6 layers, 150 steps: mean final loss of five seeds in bits per byte (*: none learned; the unigram model scores 4.489),
the sensitivity, and the sensitivity minus that of pre with its 95% interval:

                3e-4   1e-3   3e-3   1e-2   3e-2    1e-1    3e-1    sensitivity
  pre           3.89   3.13   2.78   2.63   2.81    3.11    3.84    0.542
  pre_qk_norm   3.89   3.19   2.86   2.64   2.64    2.83    3.08    0.383   -0.159 [-0.200, -0.118]
  post          3.87   3.09   2.72   2.57   4.50*   4.50*   4.50*   1.109   +0.566 [+0.536, +0.597]

Reproduced: QK norm reduces the sensitivity by nearly a third, all of it at rates above 1e-2; below, it learns slightly
more slowly. Post-LN is as good as the others up to 1e-2, and does not learn above.
"""

import numpy as np
from matplotlib.figure import Figure

from lab.analysis.experiment_runs import ExperimentRuns
from lab.core.experiment import Changes, Experiment
from lab.core.reproduction import Measured, Reproduction, at_least, at_most
from lab.figures.figure_style import BLACK, COLOURS, VARIANT_COLOURS, new_figure
from lab.reproduce.learning_rate_grid import losses_by_rate, plot_losses_by_rate, sensitivity, variants_by_rate

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
SETTINGS: dict[str, Changes] = {
  'pre': {},
  'pre_qk_norm': {'model.qk_norm': True},
  'post': {'model.connection': 'post'},
}
STYLES = {'pre': (BLACK, 'o'), 'pre_qk_norm': (COLOURS[1], 's'), 'post': (VARIANT_COLOURS['post'], 'D')}

EXPERIMENT = Experiment(
  question='Over how wide a range of learning rates does a model train?',
  variants=variants_by_rate(SETTINGS, RATES),
  base={'model.num_layers': 6, 'model.unroll': 6, 'run.steps': 150, 'run.evaluations': 1},
)


def read(found: ExperimentRuns) -> dict:
  """Losses by setting, (seeds, rates), sensitivities by seed, and their differences from that of `pre`."""
  losses = {name: losses_by_rate(found, name, RATES) for name in SETTINGS}
  sensitivities = {name: sensitivity(values) for name, values in losses.items()}
  return {
    'rates': RATES,
    'unit': found.metric.unit,
    'losses': losses,
    'sensitivity': sensitivities,
    'qk_norm': sensitivities['pre_qk_norm'] - sensitivities['pre'],
    'post': sensitivities['post'] - sensitivities['pre'],
  }


def draw(measured: Measured) -> Figure:
  """Final loss against learning rate: seeds as points, means as lines, the sensitivity in the legend."""
  figure = new_figure(2.9)
  axes = figure.add_subplot()
  for name, (colour, marker) in STYLES.items():
    label = f'{name.replace("_", " ")} (sensitivity {np.mean(measured["sensitivity"][name]):.2f})'
    plot_losses_by_rate(axes, measured['rates'], measured['losses'][name], label, colour, marker)
  axes.set_ylabel(f'final validation loss\n({measured["unit"]})')
  figure.legend(*axes.get_legend_handles_labels(), loc='outside lower center', ncols=2)
  return figure


REPRODUCTION = Reproduction(
  claim='QK norm widens the range of learning rates over which a model trains.',
  source='Wortsman et al. 2023, figure 1 and section 2.3',
  expected=(
    at_most('qk_norm', 'sensitivity with QK norm minus that without', 0, over_seeds=True),
    at_least('post', 'sensitivity of Post-LN minus that of Pre-LN', 0, over_seeds=True),
  ),
  seconds=770,
  draw=draw,
  caption=(
    'Final validation loss against learning rate. Points: seeds; lines: means. Sensitivity: mean over the rates of the '
    'loss minus the lowest loss. A diverged run counts with its initial loss.'
  ),
  read=read,
  drift=0.05,
)
