"""Grid points of a tuning of two variants at three learning rates."""

from lab.analysis.tuning_results import GridPoint

RATES, SEEDS = (1e-3, 2e-3, 4e-3), (100, 101)
ABOUT = {
  'command': 'python train.py --tune', 'data_checksum': 'b2c2', 'settings': {'run.steps': 300},
  'variants': {'baseline': {}, 'post': {'model.connection': 'post'}},
}  # fmt: skip


def points_of(losses: dict[str, list[list[float]]]) -> list[GridPoint]:
  """Makes points of losses by variant: a row per rate, a column per seed; a loss of 9 or more is a diverged run."""
  return [
    GridPoint(
      variant, rate, 20, seed, 'completed' if loss < 9 else 'diverged', loss if loss < 9 else None, loss,
      'bits per byte',
    )
    for variant, table in losses.items()
    for rate, row in zip(RATES, table, strict=True)
    for seed, loss in zip(SEEDS, row, strict=True)
  ]  # fmt: skip
