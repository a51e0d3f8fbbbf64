"""The directory of a run that is moved or deleted while it trains."""

import shutil
import time

import pytest
from quick_runs import assert_same_run, train

from training import loop
from training.run_files import locks
from training.run_files.checkpoint import steps_in

pytestmark = [
  pytest.mark.usefixtures('quick_programs', 'in_folder'),
  pytest.mark.filterwarnings('ignore'),  # Orbax leaves threads and coroutines behind when it fails
]


@pytest.mark.parametrize(('moment', 'saved'), [('training', [12]), ('saving', [12, 24]), ('its end', [36, 40])])
@pytest.mark.slow
def test_a_run_whose_workdir_is_moved_stops_and_leaves_no_files(finished, tmp_path, monkeypatch, moment, saved):
  workdir, moved = tmp_path / 'runs', tmp_path / 'moved'
  run = 'block/baseline/seed_0'

  def move(*arguments):
    if not moved.exists():
      workdir.rename(moved)

  def report(progress):
    if progress.get('step') == {'training': 15, 'saving': 30}.get(moment, -1):
      move()

  result_of = loop.result_of
  with monkeypatch.context() as patch:
    if moment == 'its end':
      patch.setattr(loop, 'result_of', lambda *arguments: (move(), result_of(*arguments))[1])
    with pytest.raises(locks.Moved, match='seed_0 was moved or deleted while in use: put it back'):
      train(workdir / run, report=report)
  assert not workdir.exists()
  assert steps_in(moved / run / 'checkpoints')[:1] in ([], *([step] for step in saved))  # [] if none was complete yet
  assert not (moved / run / 'result.json').exists()
  moved.rename(workdir)
  train(workdir / run)
  assert_same_run(workdir / run, finished[0])


@pytest.mark.slow
def test_a_run_whose_directory_is_deleted_stops_without_creating_it(tmp_path):
  saved = tmp_path / 'run' / 'checkpoints' / '12'

  def report(progress):
    if progress.get('step') == 15:
      end = time.monotonic() + 60
      while not saved.exists() and time.monotonic() < end:  # otherwise rmtree may meet the files of an unfinished save
        time.sleep(0.01)
      shutil.rmtree(tmp_path / 'run')

  with pytest.raises(locks.Moved, match=r'deleted .*while in use'):  # a save may have created the folder again
    train(tmp_path / 'run', report=report)
  assert not (tmp_path / 'run').exists()


def test_a_save_that_fails_after_a_move_names_the_move(tmp_path):
  run = tmp_path / 'run'

  def save(held):
    with loop._noticing_moves(run, held):
      run.rename(tmp_path / 'moved')
      (run / 'checkpoints' / '9.saving').mkdir(parents=True)
      raise OSError(2, 'No such file or directory')

  with locks.locked(run / 'lock') as held, pytest.raises(locks.Moved, match='moved or deleted'):
    save(held)
  assert not run.exists()
