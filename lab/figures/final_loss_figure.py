"""The main figure of an experiment: final loss by variant, and the paired differences to the baseline."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lab.analysis import wording
from lab.analysis.experiment_runs import ExperimentRuns
from lab.analysis.recorded_run import RecordedRun
from lab.figures.figure_style import (
  FAINT,
  GREY,
  CaptionedFigure,
  Summary,
  VariantStyle,
  new_figure,
  spread_apart,
  styled,
  variant_styles,
)
from training.data.evaluation_subset import evaluation_tokens


@styled
def final_loss_by_variant(runs: ExperimentRuns, summary: Summary) -> CaptionedFigure:
  """The final loss of every seed, and in a second panel the paired differences to the baseline."""
  name, title, unit = 'final_loss_by_variant', 'Final loss by variant', runs.metric.unit
  variants = list(summary['variants'])
  styles = variant_styles(runs.experiment)
  compared = any(entry['comparison'] for entry in summary['variants'].values())
  names = [runs.label(variant, separator='\n') for variant in variants]
  lines = max(name.count('\n') + 1 for name in names)
  figure = new_figure(1.25 + max(0.3, 0.13 * lines + 0.03) * len(variants))
  panels = figure.subplots(1, 2 if compared else 1, sharey=True, squeeze=False, width_ratios=[1.15, 1][: 1 + compared])
  left, rows = panels[0][0], {variant: row for row, variant in enumerate(variants)}
  for variant, row in rows.items():
    _draw_finals(left, runs.of(variant), summary['variants'][variant], row, styles[variant], runs)
  left.set_yticks(list(rows.values()), names)
  left.set(xlabel=f'final {runs.metric.split} loss\n({unit})', ylim=(len(variants) - 0.4, -0.6))
  left.grid(visible=False, axis='y')
  left.margins(x=0.06)
  _draw_ngram_baselines(left, runs)
  caption = (
    f'Left: {runs.metric.split} loss in {unit} after the last step{_scored_part(runs)}; points: seeds, '
    'bar: mean with its 95% interval. '
  )
  if compared:
    _draw_differences(panels[0][1], runs, summary, rows, styles)
    panels[0][1].set_xlabel(f'difference to baseline\n({unit})')
    caption += (
      'Right: the same minus the baseline of the same seed, on a separate scale; bar: mean with its 95% interval by '
      f"Student's t; band: the margin of ±{wording.format_compact(runs.metric.margin)}, within which differences are "
      'considered negligible; arrow: off the scale.'
    )
  if runs.not_comparable:
    caption += f' Points without a mean: runs that are not comparable ({", ".join(runs.not_comparable)}).'
  statuses = {run.status for variant in variants for run in runs.of(variant)}
  if 'failed_to_learn' in statuses:
    caption += ' Hollow: a run that did not learn.'
  if 'diverged' in statuses:
    caption += ' Cross at the right edge: a run that diverged; it is excluded from the mean.'
  return CaptionedFigure(name, title, caption, figure)


def _scored_part(runs: ExperimentRuns) -> str:
  """The part of the split that the final losses were measured on; empty if it was not recorded."""
  parts = {part for run in runs.runs if (part := evaluation_tokens(run.result)) is not None}
  return '' if not parts else ', over the whole split' if parts == {0} else ', over a fixed subset of the split'


def _draw_finals(
  axes: Axes, own: list[RecordedRun], entry: Mapping[str, Any], row: int, style: VariantStyle, runs: ExperimentRuns
) -> None:
  """Draws one row: a point per seed, and above them the mean with its interval."""
  for offset, run in zip(_offsets(len(own)), own, strict=True):
    value, gid = run.final(runs.metric), f'seed:{run.variant}:{run.seed}'
    if value is None:
      axes.plot(
        [0.99], [row + offset], 'x', transform=axes.get_yaxis_transform(), color=style.colour, ms=5, mew=1.4,
        clip_on=False, gid=f'diverged:{run.variant}:{run.seed}',
      )  # fmt: skip
    else:
      face = style.colour if run.learned else 'white'
      axes.plot([value], [row + offset], style.marker, color=style.colour, mfc=face, ms=3.5, mew=0.8, gid=gid)
  if entry['low'] is not None:
    _bar(axes, entry['mean'], entry['low'], entry['high'], row - 0.28, style, f'mean:{own[0].variant}')


def _draw_differences(
  axes: Axes, runs: ExperimentRuns, summary: Summary, rows: Mapping[str, int], styles: Mapping[str, VariantStyle]
) -> None:
  """Draws the second panel; its scale fits the runs that learned, so that a failed run does not flatten them."""
  margin = summary['measure']['margin']
  comparisons = {name: entry['comparison'] for name, entry in summary['variants'].items() if entry['comparison']}
  reach = _reach(runs, comparisons, margin)
  axes.axvspan(-margin, margin, color=FAINT, lw=0, zorder=0, gid='margin')
  axes.axvline(0, color=styles[summary['baseline']].colour, lw=0.8, zorder=1)
  axes.set_xlim(-reach, reach)
  axes.grid(visible=False, axis='y')
  axes.tick_params(left=False)
  for position, side, text in ((0.47, 'right', '← better'), (0.53, 'left', 'worse →')):
    axes.text(position, 1.01, text, transform=axes.transAxes, color=GREY, fontsize=8, ha=side, va='bottom')
  for name, comparison in comparisons.items():
    row, style, mean = rows[name], styles[name], comparison['difference']
    if mean is None:
      axes.text(0, row, 'no complete pair', color=GREY, fontsize=8, ha='center', va='center')
    elif abs(mean) > reach:
      side, edge = ('right', 0.98) if mean > 0 else ('left', 0.02)
      text = f'{mean:+.2f} →' if mean > 0 else f'← {mean:+.2f}'
      axes.text(
        edge, row, text, transform=axes.get_yaxis_transform(), color=style.colour, ha=side, va='center', fontsize=8,
        gid=f'off:{name}',
      )  # fmt: skip
    else:
      values = list(comparison['differences'].values())
      for offset, value in zip(_offsets(len(values)), values, strict=True):
        marker = style.marker if abs(value) <= reach else '>' if value > 0 else '<'
        axes.plot(
          [np.clip(value, -reach, reach)], [row + offset], marker, color=style.colour, ms=3, mew=0, alpha=0.5,
          clip_on=False, gid=f'pair:{name}',
        )  # fmt: skip
      if comparison['low'] is not None:
        _bar(axes, mean, comparison['low'], comparison['high'], row - 0.28, style, f'difference:{name}')


def _reach(runs: ExperimentRuns, comparisons: Mapping[str, Mapping[str, Any]], margin: float) -> float:
  """Half the width of the difference axis: at least twice the margin, and all pairs and intervals of learned runs."""
  values = [2 * margin]
  for name, comparison in comparisons.items():
    learned = {str(run.seed) for run in runs.of(name) if run.learned}
    values += [abs(value) for seed, value in comparison['differences'].items() if seed in learned]
    if comparison['low'] is not None and not comparison['verdict'].startswith('unstable'):
      values += [abs(comparison['low']), abs(comparison['high'])]
  return 1.12 * max(values)


def _bar(axes: Axes, mean: float, low: float, high: float, height: float, style: VariantStyle, gid: str) -> None:
  axes.plot([low, high], [height, height], color=style.colour, lw=1.4, solid_capstyle='butt', gid=gid)
  axes.plot([mean], [height], '|', color=style.colour, ms=7, mew=1.6)


def _offsets(count: int) -> np.ndarray:
  return np.linspace(-0.1, 0.24, count) if count > 1 else np.zeros(count)


def _draw_ngram_baselines(axes: Axes, runs: ExperimentRuns) -> None:
  """Draws a dashed line for each n-gram model of the same split, with its name above the axes."""
  for name, value in runs.ngram_baselines.items():
    axes.axvline(value, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1, gid=f'ngram:{name}')
  left, right = axes.get_xlim()
  positions = [(value - left) / (right - left) for value in runs.ngram_baselines.values()]
  for name, position in zip(runs.ngram_baselines, spread_apart(positions, 0.25), strict=True):
    axes.text(position, 1.01, name, transform=axes.transAxes, color=GREY, fontsize=8, ha='center', va='bottom')
