"""The stream gradient that a run logged, by layer."""

import pandas as pd

from lab.analysis.recorded_run import RecordedRun


def stream_gradient(run: RecordedRun, when: int) -> pd.Series:
  """The norm of the loss gradient at every point of the residual stream.

  Args:
    run: a run with inspect.level=norms.
    when: 0 for the first logged step, at the initial values; -1 for the last.

  Returns:
    Total norms by position: 3 is what enters block 3's attention, 3.5 what enters its feed-forward, and
    the number of layers what leaves the last block. Empty where nothing was logged.
  """
  prefix, suffix = 'stream_gradient/', '/total'
  names = [name for name in run.metrics if name.startswith(prefix) and name.endswith(suffix)]
  logged = run.metrics[names].dropna(how='all')
  if logged.empty:
    return pd.Series(dtype='float64')
  layers = run.config['model.num_layers']
  places = [_place(name.removeprefix(prefix).removesuffix(suffix), layers) for name in names]
  return logged.iloc[when].set_axis(places).sort_index()


def _place(name: str, layers: int) -> float:
  block, _, sublayer = name.partition('/')
  return layers if block == 'output' else int(block.removeprefix('block_')) + 0.5 * (sublayer == 'feed_forward')
