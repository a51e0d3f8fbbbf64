"""--tune from the command line to the report page, with a fake training that takes no time."""

import dataclasses
import json
import math

import fake_tuning
import numpy as np
import pandas as pd
import pytest
from absl.testing import flagsaver

import train
from lab.analysis import results, tuned_learning_rates, tuning_results
from lab.cli.command_line import parse_flags
from lab.commands import run_experiment, tune
from lab.core import registry
from lab.core.experiment import Grid
from lab.launch import worker_pool
from training.code_version import PROJECT
from training.config import Config, ConfigError

pytestmark = pytest.mark.usefixtures('svg_only')

VARIANTS = ('baseline', 'post_norm', 'relu', 'no_residual')
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
BLOCK = '--experiment=block'


def run_main(*arguments: str) -> int:
  with flagsaver.flagsaver():
    return train.run_main(parse_flags('train.py', ['train.py', *arguments]))


@pytest.fixture(scope='module')
def patched():
  """Replaces training by a fake and hides the committed tunings; returns the fake trainer."""
  with pytest.MonkeyPatch.context() as patch:
    trainer = fake_tuning.Trainer()
    for module in (tune, run_experiment):
      patch.setattr(module, 'train_runs', trainer)
    patch.setattr(tuned_learning_rates, 'COMMITTED', PROJECT / 'nowhere')
    yield trainer


@pytest.fixture(scope='module')
def tuned(patched, tmp_path_factory):
  """A work directory after --tune, and the labels of the trained runs."""
  workdir = tmp_path_factory.mktemp('work') / 'runs'
  assert run_main(BLOCK, '--tune', '--seeds=0,1', f'--workdir={workdir}') == 0
  trained, patched.trained = patched.trained, []
  return workdir, trained


@pytest.fixture
def committed(tuned, tmp_path, monkeypatch):
  """The folder of committed tunings, containing this one."""
  folder = tmp_path / 'tuned'
  folder.mkdir()
  (folder / 'block.csv').write_bytes((tuned[0] / 'block' / 'tuned.csv').read_bytes())
  monkeypatch.setattr(tuned_learning_rates, 'COMMITTED', folder)
  return folder


def rates_of(runs) -> dict[str, float]:
  return {run.variant: run.config.optimizer.learning_rate for run in runs}


def test_every_variant_gets_the_same_grid_before_the_experiment_is_run(tuned):
  _, trained = tuned
  grid = {f'block/tuning/{name}/lr_{rate:g}/seed_{seed}' for name in VARIANTS for rate in RATES for seed in (100, 101)}
  assert set(trained[: len(grid)]) == grid
  assert set(trained[len(grid) :]) == {f'block/{name}/seed_{seed}' for name in VARIANTS for seed in (0, 1)}
  assert len(trained) == len(set(trained))


def test_every_point_of_the_grid_is_in_the_file(tuned):
  frame = pd.read_csv(tuned[0] / 'block' / 'tuned.csv', comment='#').set_index(['variant', 'learning_rate', 'seed'])
  assert len(frame) == 4 * 5 * 2
  for (variant, rate, seed), row in frame.iterrows():
    status, loss = fake_tuning.status(variant, rate, seed), fake_tuning.loss(variant, rate, seed)
    assert row['status'] == status
    if status == 'completed':
      assert row['final_loss'] == row['counted_loss'] == loss
    elif status == 'failed_to_learn':
      assert row['final_loss'] == loss
      assert row['counted_loss'] == pytest.approx(max(loss, 4.159 / math.log(2)))
    else:
      log = tuned[0] / f'block/tuning/{variant}/lr_{rate:g}/seed_{seed}/metrics.jsonl'
      start = json.loads(log.read_text().splitlines()[0])['train/loss']
      assert math.isnan(row['final_loss'])
      assert row['counted_loss'] == pytest.approx(start / math.log(2))
  chosen = frame[frame['chosen']].reset_index().groupby('variant')['learning_rate'].unique()
  assert {variant: list(rates) for variant, rates in chosen.items()} == {
    'baseline': [4e-3], 'post_norm': [2e-3], 'relu': [1.6e-2], 'no_residual': [1.6e-2],
  }  # fmt: skip
  head = [line for line in (tuned[0] / 'block' / 'tuned.csv').read_text().splitlines() if line.startswith('#')]
  assert {line.partition(': ')[0] for line in head} == {
    '# command', '# code_revision', '# data_checksum', '# device', '# layout', '# versions', '# settings', '# variants',
    '# code', '# sha256',
  }  # fmt: skip


def test_the_experiment_runs_at_the_chosen_rates(tuned):
  frame = results.load(tuned[0])
  assert len(frame) == 8, 'tuning runs do not count as runs of the experiment'
  assert len(results.load(tuned[0] / 'block')) == 8
  assert frame['learning_rate_tuned'].all()
  assert set(frame['seed']) == {0, 1}
  rates = dict(zip(frame['variant'], frame['learning_rate'], strict=True))
  assert rates == {'baseline': 4e-3, 'post_norm': 2e-3, 'relu': 1.6e-2, 'no_residual': 1.6e-2}
  assert len(results.load(tuned[0] / 'block' / 'tuning')) == 40, 'tuning runs can be loaded by themselves'
  assert not results.load(tuned[0] / 'block' / 'tuning')['learning_rate_tuned'].any()


def test_the_report_uses_the_test_split(tuned):
  summary = json.loads((tuned[0] / 'block' / 'summary.json').read_text())
  assert summary['measure']['split'] == 'test'
  finals = [fake_tuning.loss('relu', 1.6e-2, seed) + fake_tuning.TEST_MINUS_VALIDATION for seed in (0, 1)]
  assert list(summary['variants']['relu']['seeds'].values()) == pytest.approx(finals)
  assert summary['tuning']['seeds'] == [100, 101]
  assert 'tuning budget for the learning rate' in summary['held_equal']
  assert 'learning rate 0.016 (tuned; baseline 4e-3)' in summary['variants']['relu']['sentence']


def test_the_page_says_how_the_learning_rates_were_chosen(tuned):
  page = (tuned[0] / 'block' / 'report.html').read_text()
  for piece in (
    'over tuning seeds 100, 101', 'results are reported on other seeds and on the test', 'test loss, bits per byte',
    'relu: its learning rate, 0.016, is the highest of the grid', 'Left: test loss',
    'no_residual: 0 of 2 tuning runs learned at its learning rate',
  ):  # fmt: skip
    assert piece in page
  assert 'baseline: its learning rate' not in page
  captions = [part.partition('.</b>')[0] for part in page.split('<figcaption><b>')[1:]]
  assert captions[:2] == ['Final loss by learning rate', 'Final loss by variant']
  assert (tuned[0] / 'block/figures/final_loss_by_learning_rate.svg').exists()


def test_the_table_says_how_the_learning_rates_were_chosen(tuned, capsys):
  assert run_main(BLOCK, '--tune', '--seeds=0,1', f'--workdir={tuned[0]}') == 0
  printed = ' '.join(capsys.readouterr().out.split())
  for piece in ('byte (test):', 'at 2e-3', 'tuning: each variant runs', 'is the highest of the grid', 'seeds 100, 101'):
    assert piece in printed


def test_repeating_the_command_trains_nothing_and_keeps_the_file(tuned, patched, launched, monkeypatch):
  path = tuned[0] / 'block' / 'tuned.csv'
  before = path.read_bytes()
  monkeypatch.setattr('sys.argv', ['train.py', 'another command'])
  for flags in (['--tune', '--seeds=0,1'], ['--seeds=0,1']):  # without --tune its tuned.csv applies as well
    assert run_main(BLOCK, *flags, f'--workdir={tuned[0]}') == 0
  assert patched.trained == []
  assert [worker_pool.unfinished(runs) for _, runs, _ in launched] == [[], []]
  assert path.read_bytes() == before


def test_variants_may_be_tuned_one_after_the_other(tuned, patched, launched, tmp_path):
  at = f'--workdir={tmp_path}'
  assert run_main(BLOCK, '--tune', '--variants=baseline,relu', at) == 0
  assert set(tuning_results.read_tuning(tmp_path / 'block/tuned.csv').chosen) == {'baseline', 'relu'}
  assert run_main(BLOCK, '--tune', '--variants=post_norm,no_residual', at) == 0
  assert len(patched.trained) == 40
  patched.trained = []
  whole = tuning_results.read_tuning(tmp_path / 'block/tuned.csv')
  assert set(whole.points) == set(tuning_results.read_tuning(tuned[0] / 'block/tuned.csv').points)
  assert list(whole.about['variants']) == ['baseline', 'relu', 'post_norm', 'no_residual']


def test_a_damaged_file_is_rebuilt_from_its_runs(patched, launched, tmp_path, capsys):
  at, path = f'--workdir={tmp_path}', tmp_path / 'block/tuned.csv'
  assert run_main(BLOCK, '--tune', '--variants=baseline,relu', at) == 0
  whole = path.read_bytes()
  patched.trained = []
  path.write_bytes(whole.replace(b'0.001', b'0.009', 1))
  assert run_main(BLOCK, '--variants=baseline,relu', at) == 2
  assert 'tuned.csv is damaged (its content does not match its checksum): --tune rebuilds it' in capsys.readouterr().err
  assert run_main(BLOCK, '--tune', '--variants=relu', at) == 2  # the choice for the other variant would be lost
  assert 'it also had baseline: tune all variants, without --variants' in capsys.readouterr().err
  assert run_main(BLOCK, '--tune', '--variants=baseline,relu', at) == 0
  assert 'rebuilt from its runs' in capsys.readouterr().out
  assert patched.trained == []
  assert path.read_bytes().partition(b'variant,')[2] == whole.partition(b'variant,')[2]


def test_variants_tuned_with_other_settings_are_not_merged(patched, launched, tmp_path, capsys, monkeypatch):
  at = f'--workdir={tmp_path}'
  assert run_main(BLOCK, '--tune', '--variants=baseline,relu', at) == 0
  assert run_main(BLOCK, '--tune', '--variants=post_norm', '--config.run.steps=99', at) == 2
  assert 'run.steps is 300 there, 99 here' in capsys.readouterr().err
  block = registry.find_experiment('block')
  other = dataclasses.replace(block, grid=Grid((1e-3, 4e-3)))
  monkeypatch.setattr(registry, 'find_experiment', lambda name: other)
  assert run_main(BLOCK, '--tune', '--variants=post_norm', at) == 2
  assert 'another grid' in capsys.readouterr().err
  patched.trained = []


def test_a_committed_tuning_is_the_default(committed, launched, tmp_path):
  at = f'--workdir={tmp_path}/runs'
  assert run_main(BLOCK, '--variants=relu,baseline', at) == 0
  assert run_main(BLOCK, '--shared_learning_rate=3e-3', at) == 0
  assert run_main(BLOCK, '--config.optimizer.learning_rate=3e-3', at) == 0
  (_, own, found), (_, shared, shown), (_, by_flag, _) = launched
  assert rates_of(own) == {'baseline': 4e-3, 'relu': 1.6e-2}
  assert all(run.tuned for run in own)
  assert found.path == committed / 'block.csv'
  assert rates_of(shared) == rates_of(by_flag) == dict.fromkeys(VARIANTS, 3e-3)
  assert not any(run.tuned for run in shared + by_flag)
  assert shown == found, 'its figure is drawn anyway'


def test_a_tuning_applies_only_to_its_own_settings(committed, launched, tmp_path, capsys):
  assert run_main(BLOCK, '--config.run.steps=99', f'--workdir={tmp_path}/runs') == 0
  (_, runs, found), *_ = launched
  assert rates_of(runs) == dict.fromkeys(VARIANTS, 4e-3)
  assert found is None
  output = ' '.join(capsys.readouterr().out.split())
  assert 'all variants run at the same learning rate' in output
  assert 'run.steps is 300 there, 99 here' in output


def test_a_report_at_a_shared_rate_uses_the_validation_split(committed, patched, tmp_path, capsys):
  at = f'--workdir={tmp_path}/runs'
  assert run_main(BLOCK, '--shared_learning_rate=4e-3', '--seeds=0', '--variants=baseline,relu', at) == 0
  patched.trained = []
  summary = json.loads((tmp_path / 'runs/block/summary.json').read_text())
  assert (summary['measure']['split'], summary['tuning']) == ('validation', None)
  assert (tmp_path / 'runs/block/figures/final_loss_by_learning_rate.svg').exists()
  capsys.readouterr()
  for flags in ([], ['--tune']):
    assert run_main(BLOCK, '--seeds=0', '--variants=baseline', *flags, at) == 2
    error = capsys.readouterr().err
    assert 'holds a run whose learning rate was not tuned, but that of this run is tuned' in error
    assert f'--workdir={tmp_path}/runs_2' in error
  assert patched.trained == []


@pytest.mark.parametrize(
  ('damage', 'arguments', 'message'),
  [
    (('relu', 'rel'), [], 'has no learning rate for relu: tune it with --tune, or run all variants at one rate'),
    (('counted_loss', 'loss'), [], 'is damaged (it has no counted_loss)'),
    (('', ''), ['--seeds=4,100'], '--seeds=100: the learning rates of block are tuned on seed 100'),
    (('', ''), ['--seeds=101', '--tune'], '--seeds=101: the learning rates of block are tuned on seed 101'),
  ],
)
def test_a_tuning_that_cannot_be_used_is_reported(damage, arguments, message, committed, launched, tmp_path, capfd):
  lines = (committed / 'block.csv').read_text().splitlines(keepends=True)
  text = ''.join(line for line in lines if not line.startswith(('# sha256', '# code:')))  # as an older version wrote it
  (committed / 'block.csv').write_text(text.replace(*damage) if damage[0] else text)
  assert run_main(BLOCK, *arguments, f'--workdir={tmp_path}/runs') == 2
  output, error = capfd.readouterr()
  assert (output, error.count('\n')) == ('', 1)
  assert message in error
  assert not (tmp_path / 'runs').exists()


def test_after_a_failed_run_nothing_is_written(patched, tmp_path, monkeypatch):
  outcome = run_experiment.TrainingOutcome
  monkeypatch.setattr(tune, 'train_runs', lambda runs, *rest: outcome(None, runs, runs[:1], None))
  assert run_main(BLOCK, '--tune', f'--workdir={tmp_path}') == 1
  monkeypatch.setattr(tune, 'train_runs', lambda runs, *rest: outcome(None, runs, [], 75))
  assert run_main(BLOCK, '--tune', f'--workdir={tmp_path}') == 75
  assert not list(tmp_path.iterdir())


def test_the_message_about_an_occupied_directory_names_another_workdir(tmp_path):
  experiment = registry.find_experiment('block')
  first = tune.plan_grid(experiment, Config(), {}, tmp_path / 'runs')[0]
  first.directory.mkdir(parents=True)
  (first.directory / 'config.json').write_text(json.dumps({**first.config.to_flat(), 'run.batch_size': 7}))
  with pytest.raises(ConfigError, match=f'use --workdir={tmp_path}/runs_2 for this run$'):
    run_experiment.check_directories([first])


def test_a_tuning_run_is_evaluated_once(tmp_path):
  experiment = registry.find_experiment('block')
  for changes, expected in (({}, 1), ({'run.evaluations': 7}, 7)):
    runs = tune.plan_grid(experiment, Config(), changes, tmp_path)
    assert {run.config.run.evaluations for run in runs} == {expected}


@pytest.mark.slow
def test_a_real_tuning_of_a_tiny_model(tmp_path, monkeypatch):
  experiment = dataclasses.replace(registry.find_experiment('block'), grid=Grid((1e-4, 1e-2), seeds=(100,)))
  monkeypatch.setattr(registry, 'find_experiment', lambda name: experiment)
  monkeypatch.setattr(tuned_learning_rates, 'COMMITTED', tmp_path)
  words = np.random.default_rng(0).choice(['in ', 'the ', 'beginning ', 'was ', 'a ', 'block\n'], 10_000)
  (tmp_path / 'text.txt').write_text(''.join(words))
  arguments = [
    BLOCK, '--tune', '--variants=baseline,relu', '--seeds=0', '--workers=2', f'--workdir={tmp_path}/runs',
    '--config.model.num_layers=2', '--config.model.d_model=16', '--config.model.unroll=1', '--config.run.steps=12',
    '--config.run.evaluations=3', '--config.run.evaluation_batches=1', '--config.optimizer.warmup_steps=2',
    '--config.data.sequence_length=16', '--config.data.task=files', f'--config.data.paths={tmp_path}/text.txt',
  ]  # fmt: skip
  assert run_main(*arguments) == 0
  found = tuning_results.read_tuning(tmp_path / 'runs/block/tuned.csv')
  assert found.chosen == {'baseline': (1e-2, 2), 'relu': (1e-2, 2)}, '12 steps at 1e-4 change almost nothing'
  frame = results.load(tmp_path / 'runs')
  assert len(frame) == 2
  assert frame['learning_rate_tuned'].all()
  assert set(frame['learning_rate']) == {1e-2}
  baselines = [
    json.loads((tmp_path / f'runs/block/yardsticks{of}.json').read_text())['bits_per_byte'] for of in ('', '_test')
  ]
  assert baselines[0].keys() == baselines[1].keys() == {'unigram', 'bigram', 'trigram'}
  assert baselines[0] != baselines[1]
  before = {path: path.read_bytes() for path in (tmp_path / 'runs').rglob('*') if path.is_file()}
  assert run_main(*arguments) == 0
  assert {path: path.read_bytes() for path in (tmp_path / 'runs').rglob('*') if path.is_file()} == before
