"""The figure of loss against training time."""

import json

import fake_runs
import numpy as np
import pytest
from summaries import load_summary

from lab.analysis import load_runs
from lab.figures import training_time_figure

LEVELS = {'baseline': 2.9, 'relu': 2.8}


def write_times(run, per_step: float) -> None:
  steps = [json.loads(line)['step'] for line in (run / 'metrics.jsonl').read_text().splitlines()]
  lines = [{'step': step, 'wall_time': 1e9 + step, 'train_seconds': per_step * step} for step in steps]
  (run / 'times.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))


@pytest.fixture
def timed(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', levels=LEVELS, points=4)
  for seed in range(3):
    write_times(directory / 'baseline' / f'seed_{seed}', 0.1 * (1 + seed))
    write_times(directory / 'relu' / f'seed_{seed}', 0.5)
  return directory


def test_means_of_loss_and_time_over_seeds(timed):
  found = load_runs.load(fake_runs.BLOCK, timed)
  picture = training_time_figure.loss_over_time(found, load_summary(fake_runs.BLOCK, timed))
  lines = {}
  for line in picture.figure.axes[0].lines:
    lines.setdefault(line.get_gid(), []).append(np.array(line.get_data()))
  own = [run for run in found.of('baseline') if run.seed < 3]
  losses = np.mean([run.metrics['validation/bits_per_byte'].dropna().to_numpy() for run in own], axis=0)
  ((seconds, mean),) = lines['mean:baseline']
  np.testing.assert_allclose(mean, losses)
  steps = own[0].metrics['validation/bits_per_byte'].dropna().index.to_numpy()
  np.testing.assert_allclose(seconds, 0.1 * (1 + 2 + 3) / 3 * steps)
  assert len(lines['seed:baseline']) == len(lines['seed:relu']) == 3
  assert 'TFRT_CPU_0' in picture.caption
  assert 'shared the machine' in picture.caption


def test_the_caption_lists_what_is_left_out(timed):
  config = timed / 'relu/seed_1/config.json'
  config.write_text(json.dumps({**json.loads(config.read_text()), 'optimizer.weight_decay': 0.5}))
  caption = training_time_figure.loss_over_time(
    load_runs.load(fake_runs.BLOCK, timed), load_summary(fake_runs.BLOCK, timed)
  ).caption
  assert 'Left out: runs that are not comparable (relu).' in caption
  assert caption.endswith('Left out: 2 of 5 runs, which have no recorded times.')


def test_without_times_the_caption_says_so(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', levels=LEVELS, points=4)
  picture = training_time_figure.loss_over_time(
    load_runs.load(fake_runs.BLOCK, directory), load_summary(fake_runs.BLOCK, directory)
  )
  assert picture.figure is None
  assert 'logged no times' in picture.caption
