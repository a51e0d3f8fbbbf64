"""The figures of an experiment, drawn only from its logs: loss curves, and the stream gradient by layer."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from lab.analysis import recorded_run, wording
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import RecordedRun
from lab.analysis.stream_gradients import stream_gradient
from lab.analysis.tuning_results import Tuning
from lab.figures.figure_style import (
  GREY,
  CaptionedFigure,
  LineLabel,
  Summary,
  VariantStyle,
  label_lines,
  new_figure,
  styled,
  variant_styles,
)
from lab.figures.final_loss_figure import final_loss_by_variant
from lab.figures.learning_rate_figure import final_loss_by_learning_rate
from lab.figures.training_time_figure import loss_over_time

LONGEST_IN_LEGEND = 48  # characters on one line
NAMES = (
  'final_loss_by_learning_rate', 'final_loss_by_variant', 'loss_curves', 'loss_over_time', 'stream_gradient_by_layer',
)  # fmt: skip


def draw_all(runs: ExperimentRuns, summary: Summary, tuning: Tuning | None = None) -> list[CaptionedFigure]:
  """Draws every figure of an experiment (NAMES); the first shows its tuning, if it has one."""
  first = [final_loss_by_learning_rate(tuning, runs.experiment)] if tuning else []
  drawings = (final_loss_by_variant, loss_curves, loss_over_time, stream_gradient_by_layer)
  return first + [draw(runs, summary) for draw in drawings]


@styled
def loss_curves(runs: ExperimentRuns, summary: Summary) -> CaptionedFigure:
  """Validation loss against training tokens: thin lines for seeds, thick lines for their means."""
  name, title, metric = 'loss_curves', 'Loss during training', runs.metric
  drawn = [(run, run.curve(metric)) for variant in summary['variants'] for run in runs.of(variant)]
  drawn = [(run, curve) for run, curve in drawn if len(curve)]
  if not any(len(curve) > 1 for _, curve in drawn):
    return CaptionedFigure(
      name, title, f'Not drawn: no run logged {metric.curve} more than once (see run.evaluations).', None
    )
  figure, styles = new_figure(3.1 + 0.15 * max(0, len(summary['variants']) - 6)), variant_styles(runs.experiment)
  axes = figure.add_subplot()
  for run, curve in drawn:
    style = styles[run.variant]
    line = ':' if run.variant in runs.not_comparable else '-'
    axes.plot(curve.index, curve, line, color=style.colour, lw=0.6, alpha=0.45, gid=f'seed:{run.variant}:{run.seed}')
  labels = []
  for variant in summary['variants']:
    mean = recorded_run.mean_curve(runs.pooled(variant), metric)
    if len(mean):
      style = styles[variant]
      axes.plot(mean.index, mean, lw=1.5, gid=f'mean:{variant}', **style.line)
      labels.append(LineLabel(mean.iloc[-1], runs.label(variant), style.colour, style.dashes))
  compared = [(run, curve) for run, curve in drawn if run.variant not in runs.not_comparable] or drawn
  _set_y_limits(axes, compared)
  labels += _not_comparable_labels(axes, drawn, styles, runs)
  labels += _diverged_labels(axes, drawn, styles, {label.text for label in labels}, runs)
  for baseline, height in runs.ngram_baselines.items():
    if axes.get_ylim()[0] <= height <= axes.get_ylim()[1]:
      axes.axhline(height, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1, gid=f'ngram:{baseline}')
      labels.append(LineLabel(height, baseline, GREY, (4, 3)))
  axes.set(xlabel='training tokens', ylabel=f'validation loss ({metric.unit})')
  axes.set_xlim(0, max(curve.index[-1] for _, curve in compared))
  axes.xaxis.set_major_formatter(EngFormatter(sep=''))
  label_lines(figure, axes, labels)
  caption = (
    f'Validation loss in {metric.unit}, on a fixed part of the split, against training tokens. '
    'Thin: one seed; thick: the mean over the seeds that did not diverge.'
  )
  if any(run.status == 'diverged' for run, _ in drawn):
    caption += ' A cross marks where a run diverged; it is excluded from the mean.'
  return CaptionedFigure(name, title, caption + not_comparable_caption(runs), figure)


def not_comparable_caption(runs: ExperimentRuns) -> str:
  """The end of a caption, if some variants are not comparable."""
  return (
    f' Dotted, and excluded from the means: runs that are not comparable ({", ".join(runs.not_comparable)}).'
    if runs.not_comparable
    else ''
  )


@styled
def stream_gradient_by_layer(runs: ExperimentRuns, summary: Summary) -> CaptionedFigure:
  """The norm of the gradient along the residual stream, at the initial values and at the end of training."""
  name, title = 'stream_gradient_by_layer', 'Gradient along the residual stream'
  drawn = [run for variant in summary['variants'] for run in runs.of(variant)]
  drawn = [run for run in drawn if len(stream_gradient(run, 0))]
  if not drawn:
    return CaptionedFigure(name, title, 'Not drawn: no stream gradient was logged (inspect.level=off).', None)
  labels = {variant: _legend_label(variant) for variant in summary['variants']}
  lines = [line for label in labels.values() for line in label.splitlines()]
  columns = min(4, int(76 / (7 + max(map(len, lines)))) or 1)
  rows, tallest = math.ceil(len(labels) / columns), max(label.count('\n') + 1 for label in labels.values())
  figure = new_figure(2.75 + (0.2 + 0.14 * (tallest - 1)) * rows)
  styles = variant_styles(runs.experiment)
  panels = figure.subplots(1, 2, sharey=True)
  hidden, layers = 0, max(run.config['model.num_layers'] for run in drawn)
  for axes, text, when in zip(panels, ('at the initial values', 'at the end of training'), (0, -1), strict=True):
    axes.set(yscale='log', title=text, xlabel=f'layer ({layers}: output)')
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for variant in summary['variants']:
      gradients = [(run, stream_gradient(run, when)) for run in drawn if run.variant == variant]
      hidden += sum(int((gradient == 0).sum()) for _, gradient in gradients)
      _draw_gradients(axes, variant, gradients, styles[variant], when == -1, variant in runs.not_comparable)
  panels[0].set_ylabel('stream gradient\n(nats per unit, norm over tokens)')
  handles = [Line2D([], [], lw=1.5, label=label, **styles[variant].line) for variant, label in labels.items()]
  figure.legend(handles=handles, loc='outside lower center', ncols=columns, handlelength=1.8)
  caption = (
    'Norm of the gradient of the loss with respect to the residual stream, at the input of each attention (whole '
    'numbers) and each feed-forward (halves), and at the output of the stack; in nats per unit change of the stream, '
    'over all tokens as sqrt(n sum_t |g_t|^2) with n the number of tokens in the batch, so that it does not depend on '
    'the batch size. Thin: one seed; thick: their geometric mean. '
    'The ratio of the first to the last layer at the initial values does not predict which variant learns.'
  )
  if any(run.status == 'diverged' for run in drawn):
    caption += ' Crosses: a run that diverged, at its last logged step; it is excluded from the mean.'
  if hidden:
    caption += (
      f' Not shown on the logarithmic axis: {hidden} gradients that are 0, '
      'or whose square is below the smallest float32.'
    )
  return CaptionedFigure(name, title, caption + not_comparable_caption(runs), figure)


def _legend_label(variant: str) -> str:
  """A variant's name, broken into lines if the figure is not wide enough."""
  return variant if len(variant) <= LONGEST_IN_LEGEND else wording.wrap_name(variant)


def _set_y_limits(axes: Axes, drawn: list[tuple[RecordedRun, pd.Series]]) -> None:
  """Fits the y axis to the runs that did not diverge, so that a diverged run does not flatten the others."""
  curves = [curve for run, curve in drawn if run.status != 'diverged'] or [curve for _, curve in drawn]
  low, high = min(curve.min() for curve in curves), max(curve.max() for curve in curves)
  pad = 0.04 * (high - low) or 0.01
  axes.set_ylim(low - pad, high + pad)


def _not_comparable_labels(
  axes: Axes, drawn: list[tuple[RecordedRun, pd.Series]], styles: Mapping[str, VariantStyle], runs: ExperimentRuns
) -> list[LineLabel]:
  """Labels for variants that are not comparable, each at the end of its first run."""
  low, high = axes.get_ylim()
  labels = []
  for variant in runs.not_comparable:
    curves = [curve for run, curve in drawn if run.variant == variant]
    if curves:
      height = min(max(float(curves[0].iloc[-1]), low), high)
      labels.append(LineLabel(height, runs.label(variant), styles[variant].colour, (1, 1)))
  return labels


def _diverged_labels(
  axes: Axes,
  drawn: list[tuple[RecordedRun, pd.Series]],
  styles: Mapping[str, VariantStyle],
  labelled: set[str],
  runs: ExperimentRuns,
) -> list[LineLabel]:
  """Marks where runs diverged; returns labels for variants that have no mean line to carry one."""
  labels = []
  for run, curve in drawn:
    if run.status != 'diverged':
      continue
    colour, height = styles[run.variant].colour, min(curve.iloc[-1], axes.get_ylim()[1])
    axes.plot(
      [curve.index[-1]], [height], 'x', color=colour, ms=6, mew=1.5, clip_on=False, zorder=5,
      gid=f'diverged:{run.variant}:{run.seed}',
    )  # fmt: skip
    text = runs.label(run.variant)
    if text not in labelled:
      labelled.add(text)
      labels.append(LineLabel(height, text, colour, styles[run.variant].dashes))
  return labels


def _draw_gradients(
  axes: Axes,
  variant: str,
  gradients: list[tuple[RecordedRun, pd.Series]],
  style: VariantStyle,
  at_end: bool,
  not_comparable: bool,
) -> None:
  """Draws one variant in one panel; zeros cannot be drawn on a logarithmic axis.

  Args:
    axes: the panel.
    variant: its name.
    gradients: its runs with their gradients by layer.
    style: the variant's style.
    at_end: whether the gradients are those at the end of training, where diverged runs are marked.
    not_comparable: whether the runs are not comparable, and have no mean line.
  """
  logs = []
  for run, gradient in gradients:
    positive, diverged = gradient.where(gradient > 0), at_end and run.status == 'diverged'
    axes.plot(
      positive.index, positive, ':' if not_comparable else '-', color=style.colour, lw=0.6, alpha=0.45,
      marker='x' if diverged else '', ms=3,
      gid=f'seed:{variant}:{run.seed}',
    )  # fmt: skip
    if not diverged and not not_comparable:
      logs.append(np.log(positive))
  if logs:
    mean = np.exp(pd.concat(logs, axis=1).mean(axis=1))
    axes.plot(mean.index, mean, lw=1.5, gid=f'mean:{variant}', **style.line)
