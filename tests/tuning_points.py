"""Points of a tuning, as from runs of two variants at three learning rates."""

from lab.analysis.tuning_results import GridPoint

RATES, SEEDS = (1e-3, 2e-3, 4e-3), (100, 101)
ABOUT = {
  'command': 'python train.py --tune', 'data_checksum': 'b2c2', 'settings': {'run.steps': 300},
  'variants': {'baseline': {}, 'post': {'model.norm_placement': 'post'}},
}  # fmt: skip


def points_of(losses: dict[str, list[list[float]]]) -> list[GridPoint]:
  """By variant a row a rate, a column a seed; a loss of 9 or more is that of a run that diverged."""
  return [
    GridPoint(
      variant, rate, 20, seed, 'completed' if loss < 9 else 'diverged', loss if loss < 9 else None, loss,
      'bits per byte',
    )
    for variant, table in losses.items()
    for rate, row in zip(RATES, table, strict=True)
    for seed, loss in zip(SEEDS, row, strict=True)
  ]  # fmt: skip
