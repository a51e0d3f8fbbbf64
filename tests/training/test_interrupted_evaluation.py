"""Evaluations that are stopped and resumed, and their progress reports."""

import json

import pytest
from quick_runs import CONFIG, EASY, EVALUATED, Stop, assert_same_run, rows_of, train

from training import files, loop, programs, scoring
from training.data import evaluation_subset, splits
from training.programs import Programs
from training.run_files import run_directory
from training.run_files.checkpoint import steps_in

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('quick_programs', 'in_folder')]

BATCHES = {'curve': 3, 'final': 5}  # of 4 sequences: 12 per point of the curve, 20 per held-out split


@pytest.fixture(scope='module', autouse=True)
def small_batches(quick_programs):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(programs, 'EVALUATION_TOKENS', 32)
    programs._compile.cache_clear()
    yield
  programs._compile.cache_clear()


@pytest.fixture
def scored(monkeypatch):
  """Counts the batches that are scored."""
  counted: list[int] = []
  programs_for = loop.programs_for

  def counting(config) -> Programs:
    compiled = programs_for(config)
    return compiled._replace(evaluation_step=lambda *inputs: (counted.append(1), compiled.evaluation_step(*inputs))[1])

  monkeypatch.setattr(loop, 'programs_for', counting)
  return counted


class StopAt:
  """Returns True from the n-th call on."""

  def __init__(self, calls: int):
    self.calls_left = calls

  def __call__(self) -> bool:
    self.calls_left -= 1
    return self.calls_left <= 0


def test_a_repeatedly_stopped_evaluation_scores_each_batch_once(finished, tmp_path, scored):
  starts = 0
  while not (tmp_path / 'result.json').exists():
    starts += 1
    try:
      result = train(tmp_path, stop=StopAt(7))
    except loop.Stopped:
      assert starts < 30
  assert starts > 10
  assert result['resumed_at'] == 40
  assert_same_run(tmp_path, finished[0])
  every = len(EVALUATED) * BATCHES['curve'] + 2 * BATCHES['final']
  assert every <= len(scored) <= every + starts  # each stop has one more batch in flight
  assert not (tmp_path / scoring.FILE).exists()


def test_stored_sums_belong_to_their_parameters(finished, tmp_path, scored):
  """Stopped in the third batch of the validation split, then in the second batch of the test split."""
  total = 1 + CONFIG.run.steps + len(EVALUATED) * BATCHES['curve'] + 1
  for batches, calls in ((3, total + 3), (7, 2 + 4)):
    with pytest.raises(loop.Stopped):
      train(tmp_path, stop=StopAt(calls))
    stored = json.loads((tmp_path / scoring.FILE).read_text())['sums']
    assert sum(len(sums['nats']) for sums in stored.values()) == batches
  assert list(stored) == ['validation: 20 sequences', 'test: 20 sequences']
  assert steps_in(tmp_path / 'checkpoints')[0] == 40
  train(tmp_path)
  assert_same_run(tmp_path, finished[0])


@pytest.mark.parametrize('change', ['a digit', 'truncated', 'deleted', 'of other parameters'])
def test_sums_of_another_evaluation_are_not_reused(finished, tmp_path, change):
  total = 1 + CONFIG.run.steps + len(EVALUATED) * BATCHES['curve'] + 1
  with pytest.raises(loop.Stopped):
    train(tmp_path, stop=StopAt(total + 4))
  path = tmp_path / scoring.FILE
  content = json.loads(path.read_text())
  if change == 'a digit':
    content['sums']['validation: 20 sequences']['nats'][2] += 1
  if change == 'of other parameters':
    content['key'] = content['key'][::-1]
    content['sums']['validation: 20 sequences']['nats'][2] += 1
    content[files.CHECKSUM] = files.checksum_of({name: content[name] for name in ('key', 'sums')})
  path.write_text(json.dumps(content)[: -30 if change == 'truncated' else None])
  if change == 'deleted':
    path.unlink()
  train(tmp_path)
  assert_same_run(tmp_path, finished[0])


@pytest.mark.parametrize('batch', [1, 2, 3])
def test_a_stopped_validation_is_resumed_and_logged_at_the_next_start(finished, tmp_path, batch):
  with pytest.raises(loop.Stopped):
    train(tmp_path, stop=StopAt(1 + 20 + BATCHES['curve'] + batch))
  assert steps_in(tmp_path / 'checkpoints')[0] == 20
  assert [row['step'] for row in rows_of(tmp_path)] == [1, 10, 15]
  assert train(tmp_path)['resumed_at'] == 20
  assert_same_run(tmp_path, finished[0])


def test_a_start_with_other_evaluation_steps_logs_the_row_without_a_point(finished, tmp_path):
  with pytest.raises(loop.Stopped):
    train(tmp_path, stop=StopAt(1 + 30 + 2 * BATCHES['curve'] + 1))
  assert [row['step'] for row in rows_of(tmp_path)] == [1, 10, 15, 20]
  train(tmp_path, CONFIG.replace({'run.evaluations': 1}))
  rows, expected = rows_of(tmp_path), rows_of(finished[0])
  assert [row['step'] for row in rows] == [1, 10, 15, 20, 30, 40]
  assert rows[4] == {name: value for name, value in expected[4].items() if not name.startswith('validation')}
  assert rows[5] == expected[5]


def test_an_evaluation_is_saved_at_intervals(finished, tmp_path, monkeypatch, scored):
  def kill(*args):
    raise Stop

  with monkeypatch.context() as patch:
    patch.setattr(scoring, 'SAVE_SECONDS', 0.0)
    patch.setattr(loop, 'write_result', kill)
    with pytest.raises(Stop):
      train(tmp_path)
  before = len(scored)
  train(tmp_path)
  assert len(scored) == before
  assert_same_run(tmp_path, finished[0])


def test_progress_is_reported_in_tokens(tmp_path, monkeypatch):
  monkeypatch.setattr(scoring, 'REPORT_SECONDS', 0.0)
  reports: list[dict] = []
  train(tmp_path, report=reports.append)
  final = [report for report in reports if report.get('evaluating') == 'validation']
  assert [(report['done'], report['of']) for report in final] == [(32 * k, 160) for k in range(1, 6)]
  doing = [report['doing'] for report in reports if 'doing' in report]
  assert doing == ['reading the data', 'compiling', 'starting', 'evaluating', 'saving']


def test_stop_once_asks_until_the_first_true():
  answers = iter([False, True, False, False])
  stop = loop.StopOnce(lambda: next(answers))
  assert [stop() for _ in range(5)] == [False, True, True, True, True]


@pytest.fixture
def many_segments(tmp_path, monkeypatch):
  """A text of 200 blocks of 64 bytes, ten in each held-out split."""
  for module in (splits, evaluation_subset):
    monkeypatch.setattr(module, 'BLOCK', 64)
  (tmp_path / 'blocks.txt').write_bytes(EASY[:-8] * 4)
  return CONFIG.replace({'data.paths': str(tmp_path / 'blocks.txt')})


def test_another_evaluation_subset_is_scored_from_the_last_checkpoint(tmp_path, many_segments, scored):
  run, changes = tmp_path / 'run', {'run.final_evaluation_tokens': 192}
  on_all = train(run, many_segments)
  assert (on_all['val_tokens'], on_all['val_tokens_of']) == (630, 630)
  checkpoints, log = steps_in(run / 'checkpoints'), (run / 'metrics.jsonl').read_bytes()
  assert run_directory.is_finished(run, many_segments)
  assert not run_directory.is_finished(run, many_segments.replace(changes))
  scored.clear()
  on_part = train(run, many_segments.replace(changes))
  assert (on_part['val_tokens'], on_part['val_tokens_of'], on_part['resumed_at']) == (189, 630, 40)
  assert on_part['val_loss'] != on_all['val_loss']
  assert (steps_in(run / 'checkpoints'), (run / 'metrics.jsonl').read_bytes()) == (checkpoints, log)
  assert run_directory.is_finished(run, many_segments.replace(changes))
  fresh = train(tmp_path / 'fresh', many_segments.replace(changes))
  names = ('val_loss', 'test_loss', 'val_bits_per_byte', 'test_bits_per_byte', 'unigram_entropy', 'val_tokens')
  assert [on_part[name] for name in names] == [fresh[name] for name in names]
