"""ExperimentRuns: the finished runs of one experiment, grouped by variant, with the metric they are compared by."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lab.analysis import wording
from lab.analysis.recorded_run import Metric, RecordedRun
from lab.core.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class ExperimentRuns:
  """All runs of an experiment that its directory holds.

  Attributes:
    experiment: what was declared.
    runs: in the order of the declared variants, then by seed.
    records: every result.json, those of other variants included.
    metric: what the runs are compared by.
    ngram_baselines: values of n-gram models of the same text and split, in the metric's unit: {'unigram': 4.43, ...}.
    notes: what is missing or left out, a line each.
    not_comparable: the variants that are not pooled, each with what differs.
    declared: whether it is declared in what variants differ; else each is told by what it was found to differ in.
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
    """The runs of a variant that means, intervals and verdicts are made of: none where they are not comparable."""
    return [] if variant in self.not_comparable else self.of(variant)

  def label(self, variant: str, between: str = ' ') -> str:
    """A variant's name, with the share of its runs that learned where not all did; or that it is not comparable."""
    own = self.of(variant)
    learned = sum(run.learned for run in own)
    name = wording.wrap_name(variant)
    if variant in self.not_comparable:
      return f'{name}{between}(not comparable)'
    return name if learned == len(own) else f'{name}{between}({learned}/{len(own)} learned)'
