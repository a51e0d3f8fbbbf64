"""The figures of an experiment, drawn from its logs and nothing else: curves, and the stream gradient by layer."""

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

LONGEST_IN_LEGEND = 48  # characters
NAMES = (
  'final_loss_by_learning_rate', 'final_loss_by_variant', 'loss_curves', 'loss_over_time', 'stream_gradient_by_layer',
)  # fmt: skip


def draw_all(runs: ExperimentRuns, summary: Summary, tuning: Tuning | None = None) -> list[CaptionedFigure]:
  """Every figure of an experiment, of NAMES; the first is of its tuning, where there was one."""
  first = [final_loss_by_learning_rate(tuning, runs.experiment)] if tuning else []
  drawings = (final_loss_by_variant, loss_curves, loss_over_time, stream_gradient_by_layer)
  return first + [draw(runs, summary) for draw in drawings]


@styled
def loss_curves(runs: ExperimentRuns, summary: Summary) -> CaptionedFigure:
  """Validation loss against tokens: every seed thin, their mean thick."""
  name, title, metric = 'loss_curves', 'Loss while training', runs.metric
  drawn = [(run, run.curve(metric)) for variant in summary['variants'] for run in runs.of(variant)]
  drawn = [(run, curve) for run, curve in drawn if len(curve)]
  if not any(len(curve) > 1 for _, curve in drawn):
    return CaptionedFigure(
      name, title, f'Not drawn: no run has logged {metric.curve} more than once (run.evaluations).', None
    )
  figure, styles = new_figure(3.1 + 0.15 * max(0, len(summary['variants']) - 6)), variant_styles(runs.experiment)
  axes = figure.add_subplot()
  for run, curve in drawn:
    style = styles[run.variant]
    apart = ':' if run.variant in runs.not_comparable else '-'
    axes.plot(curve.index, curve, apart, color=style.colour, lw=0.6, alpha=0.45, gid=f'seed:{run.variant}:{run.seed}')
  ends = []
  for variant in summary['variants']:
    mean = recorded_run.mean_curve(runs.pooled(variant), metric)
    if len(mean):
      style = styles[variant]
      axes.plot(mean.index, mean, lw=1.5, gid=f'mean:{variant}', **style.line)
      ends.append(LineLabel(mean.iloc[-1], runs.label(variant), style.colour, style.dashes))
  compared = [(run, curve) for run, curve in drawn if run.variant not in runs.not_comparable] or drawn
  _limit_heights(axes, compared)
  ends += _apart_ends(axes, drawn, styles, runs)
  ends += _diverged_ends(axes, drawn, styles, {end.text for end in ends}, runs)
  for baseline, height in runs.ngram_baselines.items():
    if axes.get_ylim()[0] <= height <= axes.get_ylim()[1]:
      axes.axhline(height, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1, gid=f'ngram:{baseline}')
      ends.append(LineLabel(height, baseline, GREY, (4, 3)))
  axes.set(xlabel='training tokens', ylabel=f'validation loss ({metric.unit})')
  axes.set_xlim(0, max(curve.index[-1] for _, curve in compared))
  axes.xaxis.set_major_formatter(EngFormatter(sep=''))
  label_lines(figure, axes, ends)
  caption = (
    f'Validation loss in {metric.unit}, on a fixed part of the split, against training tokens. '
    'Thin: one seed; thick: the mean over the seeds that ended.'
  )
  if any(run.status == 'diverged' for run, _ in drawn):
    caption += ' A cross ends a run that diverged; it is in no mean.'
  return CaptionedFigure(name, title, caption + not_comparable_caption(runs), figure)


def not_comparable_caption(runs: ExperimentRuns) -> str:
  """What ends a caption where some variants are drawn apart."""
  return (
    f' Dotted, and in no mean: runs that are not comparable ({", ".join(runs.not_comparable)}).'
    if runs.not_comparable
    else ''
  )


@styled
def stream_gradient_by_layer(runs: ExperimentRuns, summary: Summary) -> CaptionedFigure:
  """The norm of the loss gradient along the residual stream, at the initial values and at the end."""
  name, title = 'stream_gradient_by_layer', 'Gradient along the residual stream'
  drawn = [run for variant in summary['variants'] for run in runs.of(variant)]
  drawn = [run for run in drawn if len(stream_gradient(run, 0))]
  if not drawn:
    return CaptionedFigure(name, title, 'Not drawn: no stream gradient was logged (inspect.level=off).', None)
  labels = {variant: _in_a_legend(variant) for variant in summary['variants']}
  lines = [line for label in labels.values() for line in label.splitlines()]
  columns = min(4, int(76 / (7 + max(map(len, lines)))) or 1)
  rows, tallest = math.ceil(len(labels) / columns), max(label.count('\n') + 1 for label in labels.values())
  figure = new_figure(2.75 + (0.2 + 0.14 * (tallest - 1)) * rows)
  styles = variant_styles(runs.experiment)
  both = figure.subplots(1, 2, sharey=True)
  hidden, layers = 0, max(run.config['model.num_layers'] for run in drawn)
  for axes, text, when in zip(both, ('at the initial values', 'at the end of training'), (0, -1), strict=True):
    axes.set(yscale='log', title=text, xlabel=f'layer ({layers}: output)')
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for variant in summary['variants']:
      gradients = [(run, stream_gradient(run, when)) for run in drawn if run.variant == variant]
      hidden += sum(int((gradient == 0).sum()) for _, gradient in gradients)
      _draw_gradients(axes, variant, gradients, styles[variant], when == -1, apart=variant in runs.not_comparable)
  both[0].set_ylabel('stream gradient\n(nats a unit, norm over tokens)')
  names = [Line2D([], [], lw=1.5, label=label, **styles[variant].line) for variant, label in labels.items()]
  figure.legend(handles=names, loc='outside lower center', ncols=columns, handlelength=1.8)
  caption = (
    'Norm of the gradient of the loss with respect to the residual stream, where each attention (whole numbers) and '
    'each feed-forward (halves) reads it, and at the output of the stack; in nats for a unit change of the stream, '
    'summed over positions as sqrt(n sum |g|^2) with n the tokens of the batch, so that it does not depend on the '
    'batch. Thin: one seed; thick: their geometric mean. '
    'The ratio of first to last layer at the initial values does not tell which variant learns.'
  )
  if any(run.status == 'diverged' for run in drawn):
    caption += ' Crosses: a run that diverged, at its last logged step; it is in no mean.'
  if hidden:
    caption += (
      f' Not shown on the logarithmic axis: {hidden} gradients that are 0, '
      'or whose square is below the smallest float32.'
    )
  return CaptionedFigure(name, title, caption + not_comparable_caption(runs), figure)


def _in_a_legend(variant: str) -> str:
  """A variant's name, in lines if a figure is not wide enough for it."""
  return variant if len(variant) <= LONGEST_IN_LEGEND else wording.wrap_name(variant)


def _limit_heights(axes: Axes, drawn: list[tuple[RecordedRun, pd.Series]]) -> None:
  """Fits the y axis to the runs that ended, so that one that blew up does not flatten the others."""
  ended = [curve for run, curve in drawn if run.status != 'diverged'] or [curve for _, curve in drawn]
  low, high = min(curve.min() for curve in ended), max(curve.max() for curve in ended)
  pad = 0.04 * (high - low) or 0.01
  axes.set_ylim(low - pad, high + pad)


def _apart_ends(
  axes: Axes, drawn: list[tuple[RecordedRun, pd.Series]], styles: Mapping[str, VariantStyle], runs: ExperimentRuns
) -> list[LineLabel]:
  """The labels of variants that are not comparable, each at the end of its first run."""
  low, high = axes.get_ylim()
  labels = []
  for variant in runs.not_comparable:
    curves = [curve for run, curve in drawn if run.variant == variant]
    if curves:
      height = min(max(float(curves[0].iloc[-1]), low), high)
      labels.append(LineLabel(height, runs.label(variant), styles[variant].colour, (1, 1)))
  return labels


def _diverged_ends(
  axes: Axes,
  drawn: list[tuple[RecordedRun, pd.Series]],
  styles: Mapping[str, VariantStyle],
  named: set[str],
  runs: ExperimentRuns,
) -> list[LineLabel]:
  """Marks where runs diverged; returns the labels of variants that have no mean to carry one."""
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
    if text not in named:
      named.add(text)
      labels.append(LineLabel(height, text, colour, styles[run.variant].dashes))
  return labels


def _draw_gradients(
  axes: Axes,
  variant: str,
  gradients: list[tuple[RecordedRun, pd.Series]],
  style: VariantStyle,
  at_end: bool,
  apart: bool,
) -> None:
  """One variant in one panel; what is 0 has no place on a logarithmic axis. Runs that are `apart` have no mean."""
  logs = []
  for run, gradient in gradients:
    positive, cut = gradient.where(gradient > 0), at_end and run.status == 'diverged'
    axes.plot(
      positive.index, positive, ':' if apart else '-', color=style.colour, lw=0.6, alpha=0.45,
      marker='x' if cut else '', ms=3,
      gid=f'seed:{variant}:{run.seed}',
    )  # fmt: skip
    if not cut and not apart:
      logs.append(np.log(positive))
  if logs:
    mean = np.exp(pd.concat(logs, axis=1).mean(axis=1))
    axes.plot(mean.index, mean, lw=1.5, gid=f'mean:{variant}', **style.line)
