"""ExperimentRuns: the finished runs of one experiment, grouped by variant, and the metric that compares them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lab.analysis import wording
from lab.analysis.recorded_run import Metric, RecordedRun
from lab.core.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class ExperimentRuns:
  """All finished runs in the directory of an experiment.

  Attributes:
    experiment: the declared experiment.
    runs: in the order of the declared variants, then by seed.
    records: every result.json, including those of undeclared variants.
    metric: the metric that the runs are compared by.
    ngram_baselines: scores of n-gram models on the same text and split, in the metric's unit: {'unigram': 4.43, ...}.
    notes: a line for each run that is missing or left out.
    not_comparable: the variants that are not pooled, each with the differences that prevent it.
    declared: whether the experiment declares how its variants differ; if not, reports list the differences found.
  """

  experiment: Experiment
  runs: tuple[RecordedRun, ...]
  records: Sequence[Mapping[str, Any]]
  metric: Metric
  ngram_baselines: Mapping[str, float]
  notes: tuple[str, ...]
  not_comparable: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  declared: bool = True

  @property
  def variants(self) -> list[str]:
    """The declared variants that have runs."""
    present = {run.variant for run in self.runs}
    return [name for name in self.experiment.variants if name in present]

  def of(self, variant: str) -> list[RecordedRun]:
    """The runs of a variant."""
    return [run for run in self.runs if run.variant == variant]

  def pooled(self, variant: str) -> list[RecordedRun]:
    """The runs of a variant that enter means, intervals and verdicts; none if they are not comparable."""
    return [] if variant in self.not_comparable else self.of(variant)

  def label(self, variant: str, separator: str = ' ') -> str:
    """A variant's name; if some of its runs did not learn, with their number; if it is not comparable, marked so."""
    own = self.of(variant)
    learned = sum(run.learned for run in own)
    name = wording.wrap_name(variant)
    if variant in self.not_comparable:
      return f'{name}{separator}(not comparable)'
    return name if learned == len(own) else f'{name}{separator}({learned}/{len(own)} learned)'
