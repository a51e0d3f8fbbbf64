"""The figure of validation loss against training time."""

import pandas as pd

from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import Metric, RecordedRun
from lab.figures.figure_style import (
  CaptionedFigure,
  LineLabel,
  Summary,
  label_lines,
  new_figure,
  styled,
  variant_styles,
)

SECONDS = 'train_seconds'


@styled
def loss_over_time(runs: ExperimentRuns, summary: Summary) -> CaptionedFigure:
  """Validation loss against training time: thin lines for seeds, thick lines for their means; only pooled runs."""
  name, title, metric = 'loss_over_time', 'Loss against training time', runs.metric
  curves = {variant: _timed_curves(runs.pooled(variant), metric) for variant in summary['variants']}
  curves = {variant: own for variant, own in curves.items() if own}
  if not any(len(curve) > 1 for own in curves.values() for curve in own):
    return CaptionedFigure(
      name, title, 'Not drawn: the runs logged no times, or only one point of the curve each.', None
    )
  figure, styles = new_figure(3.1 + 0.15 * max(0, len(curves) - 6)), variant_styles(runs.experiment)
  axes = figure.add_subplot()
  labels = []
  for variant, own in curves.items():
    style = styles[variant]
    for curve in own:
      axes.plot(curve[SECONDS], curve['loss'], color=style.colour, lw=0.6, alpha=0.45, gid=f'seed:{variant}')
    mean = _mean(own)
    axes.plot(mean[SECONDS], mean['loss'], lw=1.5, gid=f'mean:{variant}', **style.line)
    labels.append(LineLabel(mean['loss'].iloc[-1], runs.label(variant), style.colour, style.dashes))
  axes.set(xlabel='training time (s)', ylabel=f'validation loss ({metric.unit})')
  axes.set_xlim(0, max(curve[SECONDS].iloc[-1] for own in curves.values() for curve in own))
  label_lines(figure, axes, labels)
  devices, layouts = (' and '.join(map(str, summary[what])) or 'not recorded' for what in ('device', 'layout'))
  caption = (
    f'Validation loss in {metric.unit}, on a fixed part of the split, against the seconds spent in training steps, '
    'summed over all starts of a run; compilation, evaluation and checkpoints are excluded. Thin: one seed; thick: the '
    'means of loss and time over the seeds that did not diverge. Runs that trained at the same time shared the machine '
    f'(device: {devices}; each run: {layouts}).'
  )
  return CaptionedFigure(name, title, caption + _left_out(runs, sum(map(len, curves.values()))), figure)


def _left_out(runs: ExperimentRuns, drawn: int) -> str:
  """The end of the caption, if runs are missing from the figure."""
  text = f' Left out: runs that are not comparable ({", ".join(runs.not_comparable)}).' if runs.not_comparable else ''
  if any(run.status == 'diverged' for run in runs.runs):
    text += ' Runs that diverged are not drawn.'
  finished = [run for variant in runs.variants for run in runs.pooled(variant) if run.final(runs.metric) is not None]
  missing = len(finished) - drawn
  return f'{text} Left out: {missing} of {len(finished)} runs, which have no recorded times.' if missing else text


def _timed_curves(runs: list[RecordedRun], metric: Metric) -> list[pd.DataFrame]:
  """Seconds and loss at each point of the curve, by step, for runs that did not diverge and have recorded times."""
  finished = [run.metrics for run in runs if run.final(metric) is not None]
  logged = [metrics for metrics in finished if {SECONDS, metric.curve} <= set(metrics)]
  curves = [metrics[[SECONDS, metric.curve]].dropna().rename(columns={metric.curve: 'loss'}) for metrics in logged]
  return [curve for curve in curves if len(curve)]


def _mean(curves: list[pd.DataFrame]) -> pd.DataFrame:
  """The means of seconds and loss over seeds at their common steps; the first seed's curve if there are none."""
  common = sorted(set.intersection(*(set(curve.index) for curve in curves)))
  return sum(curve.loc[common] for curve in curves) / len(curves) if common else curves[0]
