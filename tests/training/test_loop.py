import functools
import json
import math
import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

import model
from model.config import ModelConfig
from training import loop, programs
from training.checkpoint import Checkpoints, load, steps_in
from training.config import Config, ConfigError, DataConfig, OptimizerConfig, RunConfig
from training.data import load_for, train_batches
from training.metrics_log import MetricsLog

CONFIG = Config(
  model=ModelConfig(num_layers=1, d_model=8, num_heads=2, d_ff=12),
  data=DataConfig(task='files', paths='text.txt', sequence_length=8),
  optimizer=OptimizerConfig(learning_rate=5e-2, warmup_steps=4),
  run=RunConfig(
    steps=40, batch_size=4, log_every=15, evaluations=4, evaluation_batches=3, checkpoint_every=12, keep_checkpoints=2
  ),
)
LOGGED, EVALUATED = [1, 15, 30, 40], [10, 20, 30, 40]
QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)
LABELS = {'experiment': 'block', 'variant': 'baseline', 'seed': 0}
EASY = b''.join(np.random.default_rng(0).choice([b'abcd', b'efgh'], 800).tolist())
RANDOM = np.random.default_rng(0).integers(0, 256, 3200, np.uint8).tobytes()


@pytest.fixture(scope='module', autouse=True)
def quick_programs():
  """Compiles fast, not well; counts how often."""
  names: list[str] = []

  def compile_quickly(function, *arguments):
    names.append(function.__name__)
    return function.lower(*arguments).compile(compiler_options=QUICK)

  programs._compile.cache_clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(programs, 'compile_with_cache', compile_quickly)
    yield names
  programs._compile.cache_clear()


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
  """Where the text of most tests lies."""
  path = tmp_path_factory.mktemp('data')
  (path / 'text.txt').write_bytes(EASY)
  return path


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
  monkeypatch.chdir(folder)


def train(directory: Path, config: Config = CONFIG, **settings):
  return loop.train(config, directory, LABELS, **settings)


@pytest.fixture(scope='module')
def finished(folder, tmp_path_factory):
  """A run that nothing disturbed: (its directory, its result, what was reported)."""
  directory = tmp_path_factory.mktemp('finished') / 'seed_0'
  reports: list[dict] = []
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    result = train(directory, report=reports.append)
  return directory, result, reports


def rows_of(directory: Path) -> list[dict]:
  return [json.loads(line) for line in (directory / 'metrics.jsonl').read_text().splitlines()]


def final_state(directory: Path, config: Config = CONFIG):
  """The newest checkpoint."""
  folder = directory / 'checkpoints'
  return load(folder / str(steps_in(folder)[0]), programs.programs_for(config).init(np.uint32(0)))[0]


def same_bits(one, other) -> bool:
  pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def assert_same_run(directory: Path, other: Path, config: Config = CONFIG) -> None:
  assert (directory / 'metrics.jsonl').read_bytes() == (other / 'metrics.jsonl').read_bytes()
  assert same_bits(final_state(directory, config), final_state(other, config))
  results = [json.loads((path / 'result.json').read_text()) for path in (directory, other)]
  for result in results:
    for name in ('seconds', 'tokens_per_second', 'resumed_at'):
      del result[name]
  assert results[0] == results[1]


class Stop(BaseException):
  """What a test raises to stop a run where it likes."""


def stop_at(step: int):
  def report(progress):
    if progress.get('step') == step:
      raise Stop

  return report


# --- a run that goes well


def test_a_run_leaves_its_files(finished):
  directory, result, _ = finished
  assert {'config.json', 'metrics.jsonl', 'checkpoints', 'tensorboard', 'result.json'} <= set(os.listdir(directory))
  assert Config.from_flat(json.loads((directory / 'config.json').read_text())) == CONFIG
  assert json.loads((directory / 'result.json').read_text()) == result
  assert sorted(path.name for path in (directory / 'checkpoints').iterdir() if path.is_dir()) == ['36', '40']
  assert not [path for path in directory.rglob('*') if path.name.startswith('.')]


def test_the_result_tells_what_the_run_came_to(finished):
  _, result, _ = finished
  assert list(result)[:4] == ['experiment', 'variant', 'seed', 'status']
  expected = LABELS | {
    'status': 'completed', 'steps': 40, 'tokens': 40 * 4 * 8, 'learning_rate': 0.05, 'diverged_at': None,
    'parameters': CONFIG.model.num_parameters, 'flops_per_token': CONFIG.model.flops_per_token(8), 'resumed_at': None,
    'unigram_entropy': pytest.approx(math.log(8), abs=0.01),
  }  # fmt: skip
  assert {name: result[name] for name in expected} == expected
  assert 0 < result['val_loss'] < 0.9 * math.log(8)
  for split, loss in (('val', result['val_loss']), ('test', result['test_loss'])):
    assert result[f'{split}_bits_per_byte'] == pytest.approx(loss / math.log(2))
  assert result['seconds'] > 0
  assert result['tokens_per_second'] > 0


def test_metrics_are_there_when_they_are_due(finished):
  rows = rows_of(finished[0])
  assert [row['step'] for row in rows] == sorted({*LOGGED, *EVALUATED})
  assert [row['step'] for row in rows if 'train/loss' in row] == LOGGED
  assert [row['step'] for row in rows if 'validation/loss' in row] == EVALUATED
  assert [row['step'] for row in rows if 'grad_norm/block_00/attention/query' in row] == LOGGED
  assert all(row['grad_norm/block_00/attention/query'] > 0 for row in rows if row['step'] in LOGGED)
  losses = [row['validation/loss'] for row in rows if 'validation/loss' in row]
  assert losses[-1] < losses[0]
  assert rows[-1]['validation/bits_per_byte'] == pytest.approx(losses[-1] / math.log(2))


def test_the_first_row_is_of_the_initial_values(finished):
  row = rows_of(finished[0])[0]
  params = quick_jit(lambda: model.init(CONFIG.model, jax.random.key(0)))()
  (batch,) = train_batches(load_for(CONFIG), 4, 0, 0, 1)
  logits, _ = quick_jit(lambda params, tokens: model.apply(CONFIG.model, params, tokens))(params, batch['inputs_BT'])
  logits = np.asarray(logits, np.float64)
  shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  nats = -np.log(np.take_along_axis(shares, batch['targets_BT'][..., None], -1))
  assert row['train/loss'] == pytest.approx(nats.mean(), rel=1e-4)
  squares = [np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(params)]
  assert row['param_norm/global'] == pytest.approx(sum(squares) ** 0.5, rel=1e-5)
  assert row['learning_rate'] == pytest.approx(0.05 / 4)


def test_progress_is_reported(finished):
  directory, _, reports = finished
  assert [(report['step'], report['steps']) for report in reports] == [(step, 40) for step in LOGGED]
  losses = [row['train/loss'] for row in rows_of(directory) if 'train/loss' in row]
  assert [report['loss'] for report in reports] == losses
  assert reports[0]['tokens_per_second'] is None  # the clock has not stopped yet
  assert all(report['tokens_per_second'] > 0 for report in reports[1:])


def test_the_same_run_gives_the_same_bits_and_another_seed_does_not(finished, quick_programs, tmp_path):
  compiled, events = len(quick_programs), []
  train(tmp_path / 'again')
  assert_same_run(tmp_path / 'again', finished[0])
  jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
  try:
    other = {seed: train(tmp_path / seed, CONFIG.replace({f'{seed}': 1})) for seed in ('run.init_seed', 'data.seed')}
  finally:
    jax.monitoring.clear_event_listeners()
  assert not [name for name in events if 'backend_compile' in name]
  assert len(quick_programs) == compiled  # one compilation serves every seed
  losses = {result['val_loss'] for result in other.values()}
  assert len(losses | {finished[1]['val_loss']}) == 3
  first = {name: rows_of(tmp_path / name)[0] for name in ('again', *other)}
  assert first['data.seed']['param_norm/global'] == first['again']['param_norm/global']
  assert first['run.init_seed']['param_norm/global'] != first['again']['param_norm/global']


# --- a run that is stopped, and goes on


@pytest.mark.parametrize(('step', 'resumed_at'), [(1, None), (15, 12), (30, 24), (40, 36)])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(finished, tmp_path, step, resumed_at):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(step))
  assert not (tmp_path / 'result.json').exists()
  assert [row['step'] for row in rows_of(tmp_path)] == [s for s in sorted({*LOGGED, *EVALUATED}) if s < step]
  result = train(tmp_path)
  assert result['resumed_at'] == resumed_at
  assert_same_run(tmp_path, finished[0])


def test_a_run_may_be_stopped_again_and_again(finished, tmp_path):
  for step in (15, 15, 30, 40):
    with pytest.raises(Stop):
      train(tmp_path, report=stop_at(step))
  assert train(tmp_path)['resumed_at'] == 36
  assert_same_run(tmp_path, finished[0])


@pytest.mark.parametrize('place', ['validate', 'result_of', 'write_json'])
def test_it_may_be_stopped_anywhere(finished, tmp_path, monkeypatch, place):
  def stop(*args):
    raise Stop

  with monkeypatch.context() as patch:
    patch.setattr(loop, place, stop)
    with pytest.raises(Stop):
      train(tmp_path)
  result = train(tmp_path)
  assert result['resumed_at'] == (None if place == 'validate' else 40)
  assert_same_run(tmp_path, finished[0])


@pytest.mark.parametrize('step', [1, 17, 20, 24, 40])  # 20 is evaluated, 24 saved, 40 the last
def test_a_run_that_is_told_to_stop_saves_its_step(finished, tmp_path, step):
  earlier = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
  asked = []
  with pytest.raises(loop.Stopped):
    train(tmp_path, stop=lambda: len(asked) == step or asked.append(1))
  assert steps_in(tmp_path / 'checkpoints')[0] == step
  assert not (tmp_path / 'result.json').exists()
  assert [row['step'] for row in rows_of(tmp_path)] == [s for s in sorted({*LOGGED, *EVALUATED}) if s <= step]
  assert train(tmp_path)['resumed_at'] == step
  assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == earlier
  assert_same_run(tmp_path, finished[0])


def test_a_run_that_is_told_to_stop_before_its_first_step_leaves(tmp_path):
  with pytest.raises(loop.Stopped):
    train(tmp_path, stop=lambda: True)
  assert not (tmp_path / 'metrics.jsonl').exists()


def test_the_log_is_on_the_disk_before_a_save_starts(tmp_path, monkeypatch):
  """Every line of the steps that a checkpoint has seen."""
  happened = []
  sync, save = MetricsLog.sync, Checkpoints.save

  def synced(self):
    mark = sync(self)
    happened.append(('on disk', [row['step'] for row in rows_of(tmp_path)][-1]))
    return mark

  def saved(self, state, about):
    assert about['log']['bytes'] == (tmp_path / 'metrics.jsonl').stat().st_size
    happened.append(('saved', int(state.step)))
    save(self, state, about)

  monkeypatch.setattr(MetricsLog, 'sync', synced)
  monkeypatch.setattr(Checkpoints, 'save', saved)
  train(tmp_path)
  assert happened == [
    ('on disk', 10), ('saved', 12), ('on disk', 20), ('saved', 24), ('on disk', 30), ('saved', 36), ('on disk', 40),
    ('saved', 40),
  ]  # fmt: skip


def flip(path: Path) -> None:
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(finished, tmp_path):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(40))
  assert steps_in(tmp_path / 'checkpoints') == [36, 24]
  largest = max((tmp_path / 'checkpoints' / '36').rglob('*'), key=lambda path: path.stat().st_size)
  flip(largest)
  reports: list[dict] = []
  assert train(tmp_path, report=reports.append)['resumed_at'] == 24
  assert [report['note'] for report in reports if 'note' in report] == [
    f'checkpoint 36 is damaged: {largest} has changed: went on from step 24'
  ]
  assert_same_run(tmp_path, finished[0])


def test_where_no_checkpoint_is_whole_a_run_stops_and_touches_nothing(tmp_path):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(40))
  for step in (24, 36):
    flip(tmp_path / 'checkpoints' / str(step) / 'state' / '_METADATA')
  before = content_of(tmp_path)
  with pytest.raises(ConfigError, match=rf'none is whole; delete {tmp_path} to start this run over$'):
    train(tmp_path)
  assert {path: content for path, content in content_of(tmp_path).items() if 'lock' not in path} == {
    path: content for path, content in before.items() if 'lock' not in path
  }


@pytest.mark.parametrize('row', [-1, 1, 0])
def test_a_log_that_was_damaged_is_made_again_from_a_checkpoint_before(finished, tmp_path, row):
  """Rows of steps 1, 10, 15, 20, 30; checkpoints of 24 and 36, with 4 and 5 of them."""
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(40))
  path = tmp_path / 'metrics.jsonl'
  lines = path.read_bytes().splitlines(keepends=True)
  lines[row] = lines[row].replace(b'"train/loss": ', b'"train/loss": 1').replace(b'"validation/loss": ', b'')
  path.write_bytes(b''.join(lines))
  if row == -1:
    assert train(tmp_path)['resumed_at'] == 24
    assert_same_run(tmp_path, finished[0])
  else:
    with pytest.raises(ConfigError, match=r'metrics\.jsonl has changed in its first \d+ bytes: none is whole'):
      train(tmp_path)


def test_a_line_that_was_being_written_and_a_save_under_way_are_forgotten(finished, tmp_path):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(30))
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 30, "train/lo')
  (tmp_path / 'checkpoints' / '36.saving').mkdir()
  assert train(tmp_path)['resumed_at'] == 24
  assert_same_run(tmp_path, finished[0])


@pytest.mark.slow
def test_what_is_looked_at_may_differ_when_it_goes_on(finished, tmp_path):
  looking = {'run.evaluations': 8, 'run.checkpoint_every': 7, 'run.keep_checkpoints': 1, 'run.log_every': 4}
  other = CONFIG.replace({**looking, 'inspect.level': 'off'})
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(30))
  assert train(tmp_path, other)['resumed_at'] == 24
  assert [row['step'] for row in rows_of(tmp_path)] == [1, 10, 15, 20, 25, 28, 30, 32, 35, 36, 40]
  stored = json.loads((tmp_path / 'config.json').read_text())
  assert stored == other.to_flat()
  for a, b in zip(jax.tree.leaves(final_state(tmp_path)), jax.tree.leaves(final_state(finished[0])), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_elsewhere_it_goes_on_with_a_note(finished, tmp_path):
  with pytest.raises(Stop):
    train(tmp_path, report=stop_at(30))
  path = tmp_path / 'environment.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {'layout': '8 tpu device(s), 96 core(s)'}))
  reports: list[dict] = []
  train(tmp_path, report=reports.append)
  (note,) = (report['note'] for report in reports if 'note' in report)
  assert 'the last bits may differ (layout: 8 tpu device(s), 96 core(s) then' in note
  assert_same_run(tmp_path, finished[0])


def content_of(folder: Path) -> dict[str, bytes]:
  return {str(path): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_another_run_is_refused_and_nothing_is_touched(finished):
  directory = finished[0]
  before = content_of(directory)
  with pytest.raises(ConfigError, match=r'run\.steps is 40 there, 41 here; run\.init_seed is 0 there, 3 here') as error:
    train(directory, CONFIG.replace({'run.steps': 41, 'run.init_seed': 3}))
  assert '\n' not in str(error.value)
  assert content_of(directory) == before


def test_data_that_do_not_fit_are_refused_before_anything_is_written(tmp_path):
  with pytest.raises(ConfigError, match=r'^model\.vocab_size=255, and the data have 256 tokens'):
    train(tmp_path / 'run', CONFIG.replace({'model.vocab_size': 255}))
  with pytest.raises(ConfigError, match=r'too few for a batch of 1000'):
    train(tmp_path / 'run', CONFIG.replace({'run.batch_size': 1000}))
  assert os.listdir(tmp_path) == []


def test_a_file_in_the_way_is_named(tmp_path):
  (tmp_path / 'runs').write_text('mine')
  with pytest.raises(ConfigError, match=rf'^{tmp_path}/runs is a file, and a folder is needed there'):
    train(tmp_path / 'runs' / 'seed_0')
  assert (tmp_path / 'runs').read_text() == 'mine'


# --- runs that end badly


@pytest.fixture
def spoil(monkeypatch):
  """Makes the loss of these steps NaN."""
  bad: set[int] = set()

  def spoiled(data, batch_size, seed, start_step, num_steps):
    for step, batch in enumerate(train_batches(data, batch_size, seed, start_step, num_steps), start_step + 1):
      if step in bad:
        batch['weights_BT'] = np.full_like(batch['weights_BT'], np.nan)
      yield batch

  monkeypatch.setattr(loop, 'train_batches', spoiled)
  return bad


def assert_diverged(directory: Path, result: dict, diverged_at: int) -> None:
  assert (result['status'], result['diverged_at']) == ('diverged', diverged_at)
  for name in ('val_loss', 'val_bits_per_byte', 'test_loss', 'test_bits_per_byte'):
    assert result[name] is None
  assert result == json.loads((directory / 'result.json').read_text())
  last = rows_of(directory)[-1]
  assert (last['step'], last['grad_norm/global']) == (diverged_at, None)


def test_a_learning_rate_beyond_all_measure_diverges(tmp_path):
  result = train(tmp_path, CONFIG.replace({'optimizer.learning_rate': 1e9, 'optimizer.warmup_steps': 0}))
  assert_diverged(tmp_path, result, 2)
  assert [row['step'] for row in rows_of(tmp_path)] == [1, 2]
  assert result['learning_rate'] == 1e9


@pytest.mark.parametrize('step', [1, 2, 12, 13, 20, 39, 40])
def test_the_first_step_that_is_not_finite_ends_a_run(finished, tmp_path, spoil, step):
  spoil.add(step)
  result = train(tmp_path)
  assert_diverged(tmp_path, result, step)
  assert rows_of(tmp_path)[-1]['train/loss'] is None
  whole = [row for row in rows_of(finished[0]) if row['step'] < step]
  assert rows_of(tmp_path)[:-1] == whole
  assert result['steps'] in (step, min(step + 1, 40))  # one may be on its way already
  state = final_state(tmp_path)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
  assert int(state.optimizer[-1].count) == step - 1


def test_a_run_that_diverged_and_died_before_its_result_ends_the_same(tmp_path, monkeypatch, spoil):
  spoil.add(5)

  def stop(*args):
    raise Stop

  expected = train(tmp_path / 'whole')
  with monkeypatch.context() as patch:
    patch.setattr(loop, 'result_of', stop)
    with pytest.raises(Stop):
      train(tmp_path / 'died')
  assert_diverged(tmp_path / 'died', train(tmp_path / 'died'), 5)
  assert expected['diverged_at'] == 5
  assert_same_run(tmp_path / 'died', tmp_path / 'whole')


SKIP = CONFIG.replace({'run.on_nonfinite': 'skip'})


def test_skip_drops_the_updates_that_are_not_finite(tmp_path, spoil):
  spoil.update({3, 15, 16, 17, 40})
  result = train(tmp_path, SKIP)
  assert (result['status'], result['steps'], result['diverged_at']) == ('completed', 40, None)
  losses = {row['step']: row['train/loss'] for row in rows_of(tmp_path) if 'train/loss' in row}
  assert list(losses) == LOGGED
  assert [step for step, loss in losses.items() if loss is None] == [15, 40]
  state = final_state(tmp_path, SKIP)
  assert (int(state.step), int(state.optimizer[-1].count)) == (40, 35)
  counts = {row['step']: row['nonfinite_in_a_row'] for row in rows_of(tmp_path) if 'train/loss' in row}
  assert counts == {1: 0, 15: 1, 30: 0, 40: 1}


@pytest.mark.parametrize('start', [6, 11])  # the tenth is a step between pauses, or one with an evaluation
def test_skip_gives_up_after_ten_in_a_row(tmp_path, spoil, start):
  spoil.update(range(start, start + 10))
  result = train(tmp_path, SKIP)
  assert (result['status'], result['diverged_at']) == ('diverged', start)
  assert result['val_loss'] is None
  assert rows_of(tmp_path)[-1]['step'] == start + 9
  assert int(final_state(tmp_path, SKIP).optimizer[-1].count) == start - 1


def test_who_learns_nothing_is_told_so(tmp_path, monkeypatch):
  (tmp_path / 'text.txt').write_bytes(RANDOM)
  monkeypatch.chdir(tmp_path)
  result = train(tmp_path / 'run')
  assert (result['status'], result['diverged_at'], result['steps']) == ('failed_to_learn', None, 40)
  assert result['val_loss'] >= 0.99 * result['unigram_entropy']
  assert result['val_bits_per_byte'] == pytest.approx(result['val_loss'] / math.log(2))


def test_a_failed_save_fails_the_run(tmp_path, monkeypatch):
  class Failed:
    def result(self):
      raise OSError(28, 'No space left on device')

  def break_saving(self, state, about):
    self.wait()
    self._pending = Failed()

  monkeypatch.setattr(Checkpoints, 'save', break_saving)
  with pytest.raises(OSError, match='No space left on device'):
    train(tmp_path)
  assert not (tmp_path / 'result.json').exists()
