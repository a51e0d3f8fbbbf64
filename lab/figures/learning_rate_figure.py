"""The figure of a tuning, drawn only from tuned.csv: final loss against learning rate, and the chosen rates."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Transform

from lab.analysis import wording
from lab.analysis.tuning_results import GridPoint, Tuning
from lab.core.experiment import Experiment
from lab.figures.figure_style import GREY, CaptionedFigure, VariantStyle, new_figure, styled, variant_styles

ROW = 0.055  # height of a row of marks for failed runs, above the axes, as a share of the height of the axes


@styled
def final_loss_by_learning_rate(tuning: Tuning, experiment: Experiment) -> CaptionedFigure:
  """Final loss against learning rate: points for tuning runs, lines for their means, a ring at the chosen rate."""
  name, title, unit = 'final_loss_by_learning_rate', 'Final loss by learning rate', tuning.points[0].unit
  points = {variant: tuning.of(variant) for variant in experiment.variants if tuning.of(variant)}
  labels = {variant: f'{variant} ({wording.format_compact(tuning.chosen[variant][0])})' for variant in points}
  columns = min(4, int(76 / (7 + max(map(len, labels.values()), default=0))) or 1)
  failing = [variant for variant, own in points.items() if any(point.status != 'completed' for point in own)]
  figure = new_figure(2.6 + 0.2 * math.ceil(len(points) / columns) + 0.1 * len(failing))
  axes, styles = figure.add_subplot(), variant_styles(experiment)
  axes.set(xscale='log', xlabel='learning rate', ylabel=f'final validation loss\n({unit})')
  axes.set_xticks(tuning.learning_rates, [wording.format_compact(rate) for rate in tuning.learning_rates])
  axes.xaxis.set_minor_locator(NullLocator())
  _set_y_limits(axes, [point for own in points.values() for point in own])
  for variant, own in points.items():
    row = 1 + ROW * (1 + failing.index(variant)) if variant in failing else math.nan
    _draw(axes, labels[variant], own, styles[variant], row)
  if failing:
    middle = 1 + ROW * (1 + len(failing)) / 2
    axes.text(
      -0.02, middle, 'failed', transform=axes.transAxes, color=GREY, fontsize=8, ha='right', va='center', gid='failed'
    )
  figure.legend(loc='outside lower center', ncols=columns, handlelength=2)
  figure.draw_without_rendering()  # the rows above the axes scale with their height, which the first layout sets
  return CaptionedFigure(name, title, _caption(tuning, unit), figure)


def _set_y_limits(axes: Axes, points: Sequence[GridPoint]) -> None:
  """Fits the y axis to the runs that learned, so that a failed run does not flatten them."""
  losses = [point.final_loss for point in points if point.final_loss is not None and point.status == 'completed']
  if losses:
    pad = 0.06 * (max(losses) - min(losses)) or 0.01
    axes.set_ylim(min(losses) - pad, max(losses) + pad)


def _draw(axes: Axes, label: str, own: Sequence[GridPoint], style: VariantStyle, row: float) -> None:
  """Draws one variant: a mark for each run, a line through the means for each warm-up, a ring at the chosen rate."""
  above = axes.get_xaxis_transform()

  def mark(rate: float, height: float, marker: str, transform: Transform = axes.transData, **options) -> None:
    axes.plot([rate], [height], marker, transform=transform, color=style.colour, clip_on=False, **options)

  variant = own[0].variant
  for point in own:
    gid = f'{point.status}:{variant}:{point.learning_rate:g}:{point.seed}'
    if point.final_loss is None:
      mark(point.learning_rate, row, 'x', above, ms=4, mew=1.2, gid=gid)
    elif point.status != 'completed':
      mark(point.learning_rate, row, style.marker, above, ms=4, mew=0.8, mfc='white', gid=gid)
    else:
      mark(point.learning_rate, point.final_loss, style.marker, ms=3, mew=0, gid=gid)
  chosen_rate, chosen_warmup = next(point.setting for point in own if point.chosen)
  for steps in sorted({point.warmup_steps for point in own}):
    losses: dict[float, list[float]] = {}
    for point in own:
      if point.warmup_steps == steps:
        losses.setdefault(point.learning_rate, []).append(point.counted_loss)
    means = {rate: sum(counted) / len(counted) for rate, counted in sorted(losses.items())}
    named = label if steps == chosen_warmup else None
    axes.plot(*zip(*means.items(), strict=True), lw=1.2, label=named, gid=f'mean:{variant}:{steps}', **style.line)
    if steps == chosen_warmup:
      inside = means[chosen_rate] <= axes.get_ylim()[1] or math.isnan(row)
      height, transform = (means[chosen_rate], axes.transData) if inside else (row, above)
      mark(chosen_rate, height, 'o', transform, ms=9, mew=1.2, mfc='none', gid=f'chosen:{variant}')


def _caption(tuning: Tuning, unit: str) -> str:
  several = len({point.warmup_steps for point in tuning.points}) > 1
  statuses = {point.status for point in tuning.points}
  caption = (
    f'Final validation loss in {unit} against learning rate, every variant on the same grid. Points: tuning seeds '
    f'{", ".join(map(str, tuning.seeds))}, which are not used elsewhere; lines: their means'
    f'{", one for each warm-up" if several else ""}; ring, and number in parentheses: the rate with the lowest mean.'
  )
  if 'failed_to_learn' in statuses:
    caption += ' Hollow, above: a run that did not learn; in the mean it counts as at least the unigram entropy.'
  if 'diverged' in statuses:
    caption += ' Cross, above: a run that diverged; in the mean it counts as its loss at the initial values.'
  return caption
