"""The figure of a tuning, from tuned.csv alone: final loss against learning rate, so that all see what was chosen."""

import math

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from experiments import words
from experiments.experiment import Experiment
from experiments.figure_style import Picture, VariantStyle, new_figure, styled, variant_styles
from experiments.tuning import Point, Tuning


@styled
def final_loss_by_learning_rate(tuning: Tuning, experiment: Experiment) -> Picture:
  """Final loss of every tuning run against its learning rate: seeds as points, means as lines, a ring at the choice."""
  name, title, unit = 'final_loss_by_learning_rate', 'Final loss by learning rate', tuning.points[0].unit
  variants = [variant for variant in experiment.variants if tuning.of(variant)]
  columns = min(3, int(76 / (14 + max(map(len, variants), default=0))) or 1)
  figure = new_figure(2.8 + 0.2 * math.ceil(len(variants) / columns))
  axes, styles = figure.add_subplot(), variant_styles(experiment)
  for variant in variants:
    _draw(axes, variant, tuning.of(variant), styles[variant])
  axes.set(xscale='log', xlabel='learning rate', ylabel=f'final validation loss\n({unit})')
  axes.set_xticks(tuning.learning_rates, [words.short(rate) for rate in tuning.learning_rates])
  axes.xaxis.set_minor_locator(NullLocator())
  ended = [point.final_loss for point in tuning.points if point.final_loss is not None]
  if ended:  # a loss at the initial values would flatten all others
    pad = 0.05 * (max(ended) - min(ended)) or 0.01
    axes.set_ylim(min(ended) - pad, max(ended) + pad)
  figure.legend(loc='outside lower center', ncols=columns, handlelength=2.2)
  return Picture(name, title, _caption(tuning, unit), figure)


def _draw(axes: Axes, variant: str, points: list[Point], style: VariantStyle) -> None:
  """One variant: a line for each warm-up, a mark for each run."""
  for point in points:
    gid = f'{point.status}:{variant}:{point.learning_rate:g}:{point.seed}'
    if point.final_loss is None:
      axes.plot(
        [point.learning_rate], [0.99], 'x', transform=axes.get_xaxis_transform(), color=style.colour, ms=5, mew=1.4,
        clip_on=False, gid=gid,
      )  # fmt: skip
    else:
      face = style.colour if point.status == 'completed' else 'white'
      axes.plot(
        [point.learning_rate], [point.final_loss], style.marker, color=style.colour, mfc=face, ms=3, mew=0.8, gid=gid
      )
  rate, _ = next(point.setting for point in points if point.chosen)
  for steps in sorted({point.warmup_steps for point in points}):
    losses: dict[float, list[float]] = {}
    for point in points:
      if point.warmup_steps == steps:
        losses.setdefault(point.learning_rate, []).append(point.counted_loss)
    means = {at: sum(counted) / len(counted) for at, counted in sorted(losses.items())}
    chosen = any(point.chosen for point in points if point.warmup_steps == steps)
    label = f'{variant} (chosen: {words.short(rate)})' if chosen else None
    axes.plot(*zip(*means.items(), strict=True), lw=1.2, label=label, gid=f'mean:{variant}:{steps}', **style.line)
    if chosen:
      axes.plot([rate], [means[rate]], 'o', color=style.colour, mfc='none', ms=9, mew=1.2, gid=f'chosen:{variant}')


def _caption(tuning: Tuning, unit: str) -> str:
  several = len({point.warmup_steps for point in tuning.points}) > 1
  statuses = {point.status for point in tuning.points}
  caption = (
    f'Final validation loss in {unit} against learning rate, for every variant the same grid. Points: the tuning seeds '
    f'({", ".join(map(str, tuning.seeds))}), which are no others than these; lines: their means'
    f'{", one for each warm-up" if several else ""}; ring: the lowest mean, where the variant is run.'
  )
  if 'failed_to_learn' in statuses:
    caption += ' Hollow: a run that did not learn; in the mean it counts as no better than the unigram entropy.'
  if 'diverged' in statuses:
    caption += ' Cross at the upper edge: a run that diverged; in the mean it counts as its loss at the initial values.'
  return caption
