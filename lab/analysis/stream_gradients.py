"""Metrics that a run logged at every sublayer, by position in the stack."""

import pandas as pd

from lab.analysis.recorded_run import RecordedRun
from training.metric_names import STREAM_GRADIENT, MetricName


def by_stack_position(
  metrics: pd.DataFrame, measure: str, part: str = '', num_layers: int | None = None
) -> pd.DataFrame:
  """A metric over training: one row per logged step, one column per position in the stack.

  Args:
    metrics: the metrics of a run, from `results.load_metrics`.
    measure: for example `stream_gradient` or `stream_rms`.
    part: the part of a stream gradient, for example `total`.
    num_layers: the number of layers, to include the output of the stack; None leaves it out.

  Returns:
    Columns in ascending order: 3 is block 3's attention, 3.5 its feed-forward, num_layers the output of the stack.
    Empty if the metric was not logged.
  """
  columns = {}
  for column in metrics:
    name = MetricName.parse(column)
    position = name.stack_position(num_layers)
    if position is not None and (name.measure, name.part) == (measure, part):
      columns[position] = metrics[column]
  return pd.DataFrame(columns).sort_index(axis=1).dropna(how='all')


def stream_gradient(run: RecordedRun, when: int) -> pd.Series:
  """The norm of the gradient of the loss with respect to the residual stream, at every position in the stack.

  Args:
    run: a run with inspect.level=norms or full.
    when: 0 for the first logged step, at the initial values; -1 for the last.

  Returns:
    Total norms by position in the stack: see `by_stack_position`. Empty if nothing was logged.
  """
  logged = by_stack_position(run.metrics, STREAM_GRADIENT, 'total', run.config['model.num_layers'])
  return pd.Series(dtype='float64') if logged.empty else logged.iloc[when]
