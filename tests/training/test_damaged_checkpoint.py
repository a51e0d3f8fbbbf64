"""Damage to a checkpoint is detected."""

import dataclasses
import re
import shutil
from pathlib import Path

import jax
import pytest
from orbax.checkpoint import v1 as ocp
from saved_states import ABOUT, assert_same, shapes_of, state_of

from training.config import ConfigError
from training.digests import Damaged
from training.run_files.checkpoint import Checkpoints, load_checkpoint, steps_in


def damage(path: Path, how: str) -> None:
  if how == 'deleted':
    path.unlink()
  elif how == 'emptied':
    path.write_bytes(b'')
  elif how == 'truncated':
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  else:
    content = bytearray(path.read_bytes())
    offset = {'first': 0, 'middle': len(content) // 2, 'last': len(content) - 1}[how]
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_damaged_file_is_named_and_the_previous_checkpoint_is_restored(tmp_path):
  """Every file: deleted, emptied, truncated, and with a bit flipped in its first, middle and last byte."""
  states = {step: state_of(step=step, seed=step) for step in (3, 6)}
  with Checkpoints(tmp_path / 'intact', keep=2) as checkpoints:
    for state in states.values():
      checkpoints.save(state, ABOUT)
  files = [path.relative_to(tmp_path / 'intact') for path in (tmp_path / 'intact' / '6').rglob('*') if path.is_file()]
  assert len(files) >= 10
  tried = 0
  for file in files:
    for how in ('deleted', 'emptied', 'truncated', 'first', 'middle', 'last'):
      if how != 'deleted' and not (tmp_path / 'intact' / file).stat().st_size:
        continue
      folder = tmp_path / 'damaged'
      shutil.copytree(tmp_path / 'intact', folder)
      damage(folder / file, how)
      tried += 1
      with pytest.raises(Damaged, match=f'^{re.escape(str(folder / file))}'):
        load_checkpoint(folder / '6', shapes_of(states[6]))
      if how == 'middle':
        with Checkpoints(folder, keep=2) as checkpoints:
          found = checkpoints.restore(shapes_of(states[6]), lambda about: None)
        assert_same(found.state, states[3])
        assert found.notes == [f'checkpoint 6 is damaged: {folder / file} has changed: resumes from step 3']
        assert steps_in(folder) == [3]
      shutil.rmtree(folder)
  assert tried >= 55


def test_if_all_checkpoints_are_damaged_none_is_deleted(tmp_path):
  folder = tmp_path / 'checkpoints'
  with Checkpoints(folder, keep=2) as checkpoints:
    for step in (3, 6):
      checkpoints.save(state_of(step=step), ABOUT)
    checkpoints.wait()
    damage(folder / '6' / 'state' / '_METADATA', 'middle')
    damage(folder / '3' / 'manifest.json', 'emptied')
    with pytest.raises(ConfigError) as error:
      checkpoints.restore(shapes_of(state_of()), lambda about: None)
  assert str(error.value) == (
    f'checkpoint 6 is damaged: {folder}/6/state/_METADATA has changed; checkpoint 3 is damaged: '
    f'{folder}/3/manifest.json has changed: none is intact; restore the files, or move '
    f'{tmp_path} away to train this run again'
  )
  assert steps_in(folder) == [6, 3]


@pytest.mark.filterwarnings('ignore')
def test_arrays_that_changed_before_they_were_written_are_not_loaded(tmp_path, monkeypatch):
  """The files are intact; only the checksum of the array shows it."""
  state = state_of()
  params = jax.tree.map(lambda leaf: leaf, state.params)
  params['head']['kernel'] = params['head']['kernel'].at[3, 2].multiply(-1)
  save = ocp.save_checkpointables_async
  wrong = dataclasses.replace(state, params=params)
  monkeypatch.setattr(ocp, 'save_checkpointables_async', lambda path, _: save(path, {'state': wrong}))
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state, ABOUT)
  with pytest.raises(Damaged, match=r"1: \.params\['head'\]\['kernel'\] has changed since it was saved"):
    load_checkpoint(tmp_path / '1', shapes_of(state))
