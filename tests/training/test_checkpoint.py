import dataclasses
import gc
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from model.config import ModelConfig
from model.transformer import param_shapes
from training.checkpoint import Checkpoints, load, steps_in
from training.config import Config, ConfigError
from training.digests import Damaged
from training.files import SaveFailed
from training.optimizer import make_optimizer
from training.step import State

CONFIG = Config(model=ModelConfig(vocab_size=11, num_layers=2, d_model=8, num_heads=2, norm='layer', use_bias=True))


def state_of(config: Config = CONFIG, step: int = 1, seed: int = 0) -> State:
  """A state in which no two numbers are the same."""
  params = param_shapes(config.model)
  optimizer = jax.eval_shape(make_optimizer(config.optimizer, 10).init, params)
  whole = jax.ShapeDtypeStruct((), np.int32)
  shapes = State(whole, params, optimizer, jax.ShapeDtypeStruct((), np.uint32), whole, whole)
  rng = np.random.default_rng(seed)

  def draw(leaf):
    if leaf.dtype == np.float32:
      return jnp.asarray(rng.normal(size=leaf.shape), jnp.float32)
    return jnp.asarray(rng.integers(1, 2**31, leaf.shape), leaf.dtype)

  state = jax.tree.map(draw, shapes)
  return State(
    jnp.int32(step), state.params, state.optimizer, jnp.uint32(2**32 - 1), state.nonfinite_in_a_row, state.clipped
  )


def shapes_of(state: State) -> State:
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


ABOUT = {'run': {'model.num_layers': 2}, 'log': {'bytes': 3}}


def restored(checkpoints: Checkpoints, like: State) -> State:
  found = checkpoints.restore(like, lambda about: None)
  assert found is not None
  return found.state


def assert_same(one, other) -> None:
  assert jax.tree.structure(one) == jax.tree.structure(other)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize('name', ['adamw', 'sgd', 'lion', 'muon'])
def test_a_state_comes_back_to_the_bit(tmp_path, name):
  state = state_of(CONFIG.replace({'optimizer.name': name}), step=7)
  folder = tmp_path / 'runs of mine' / 'checkpoints'  # a space, and folders that are not there yet
  with Checkpoints(folder, keep=2) as checkpoints:
    checkpoints.save(state, ABOUT)
  with Checkpoints(folder, keep=2) as checkpoints:
    assert_same(restored(checkpoints, shapes_of(state)), state)
    assert_same(restored(checkpoints, state_of(CONFIG.replace({'optimizer.name': name}), seed=1)), state)
    about = []
    checkpoints.restore(state, about.append)
    assert about == [ABOUT]


def test_numbers_that_are_not_finite_come_back_too(tmp_path):
  state = jax.tree.map(lambda leaf: leaf.at[...].set(-jnp.nan) if leaf.dtype == np.float32 else leaf, state_of())
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state, ABOUT)
    checkpoints.wait()
    assert_same(restored(checkpoints, shapes_of(state)), state)


def test_the_newest_are_kept(tmp_path):
  states = {step: state_of(step=step, seed=step) for step in (3, 6, 9, 12)}
  with Checkpoints(tmp_path, keep=2) as checkpoints:
    assert checkpoints.restore(states[3], lambda about: None) is None
    for state in states.values():
      checkpoints.save(state, ABOUT)
  assert sorted(os.listdir(tmp_path)) == ['12', '9']
  for step in (9, 12):
    assert_same(load(tmp_path / str(step), shapes_of(states[step]))[0], states[step])


def test_a_step_that_is_there_is_not_saved_again(tmp_path):
  with Checkpoints(tmp_path, keep=2) as checkpoints:
    checkpoints.save(state_of(seed=0), ABOUT)
    checkpoints.save(state_of(seed=1), ABOUT)
  with Checkpoints(tmp_path, keep=2) as checkpoints:
    checkpoints.save(state_of(seed=2), ABOUT)
    checkpoints.wait()
    assert_same(restored(checkpoints, shapes_of(state_of())), state_of(seed=0))


def test_a_relative_path_will_do(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with Checkpoints(Path('checkpoints'), keep=1) as checkpoints:
    checkpoints.save(state_of(), ABOUT)
  assert os.listdir(tmp_path / 'checkpoints') == ['1']


def test_the_memory_may_be_used_again_at_once(tmp_path):
  state = state_of()
  expected = jax.tree.map(np.array, state)
  overwrite = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state, ABOUT)
    for _ in range(3):
      state = overwrite(state)
    checkpoints.wait()
    assert_same(restored(checkpoints, shapes_of(state)), expected)


def test_leaving_waits_for_the_save(tmp_path, monkeypatch):
  waited = []
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state_of(), ABOUT)
    pending = checkpoints._pending
    monkeypatch.setattr(pending, 'result', lambda result=pending.result: waited.append(result()), raising=False)
  assert len(waited) == 1


def test_leaving_by_an_error_waits_for_the_save(tmp_path):
  def fail():
    with Checkpoints(tmp_path, keep=1) as checkpoints:
      checkpoints.save(state_of(), ABOUT)
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    fail()
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    assert_same(restored(checkpoints, shapes_of(state_of())), state_of())


class Failed:
  """A save that fails after it was started."""

  def result(self):
    raise OSError(28, 'No space left on device')


class Fine:
  def result(self):
    pass


@pytest.mark.parametrize('then', ['leave', 'wait', 'save'])
def test_a_failed_save_is_not_passed_over(tmp_path, monkeypatch, then):
  saves = iter([Failed(), Fine()])

  def fail():
    with Checkpoints(tmp_path, keep=1) as checkpoints:
      monkeypatch.setattr(ocp, 'save_checkpointables_async', lambda *args: next(saves))
      checkpoints.save(state_of(), ABOUT)
      if then == 'wait':
        checkpoints.wait()
      elif then == 'save':
        checkpoints.save(state_of(step=2), ABOUT)

  with pytest.raises(SaveFailed, match=r'/1 could not be written \(No space left on device\): what was'):
    fail()


def test_a_folder_that_vanished_fails_the_save(tmp_path):
  folder = tmp_path / 'checkpoints'

  def fail():
    with Checkpoints(folder, keep=1) as checkpoints:
      shutil.rmtree(folder)
      folder.write_text('a file in its place')
      checkpoints.save(state_of(), ABOUT)

  with pytest.raises(SaveFailed, match='checkpoints'):
    fail()
  assert folder.read_text() == 'a file in its place'


def damage(path: Path, how: str) -> None:
  if how == 'deleted':
    path.unlink()
  elif how == 'emptied':
    path.write_bytes(b'')
  elif how == 'cut short':
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  else:
    content = bytearray(path.read_bytes())
    place = {'first': 0, 'middle': len(content) // 2, 'last': len(content) - 1}[how]
    content[place] ^= 1
    path.write_bytes(content)


def test_whatever_is_damaged_is_named_and_the_one_before_it_is_restored(tmp_path):
  """Every file: deleted, emptied, cut short, and one bit flipped in its first, middle and last byte."""
  states = {step: state_of(step=step, seed=step) for step in (3, 6)}
  with Checkpoints(tmp_path / 'made', keep=2) as checkpoints:
    for state in states.values():
      checkpoints.save(state, ABOUT)
  files = [path.relative_to(tmp_path / 'made') for path in (tmp_path / 'made' / '6').rglob('*') if path.is_file()]
  assert len(files) >= 10
  tried = 0
  for file in files:
    for how in ('deleted', 'emptied', 'cut short', 'first', 'middle', 'last'):
      if how != 'deleted' and not (tmp_path / 'made' / file).stat().st_size:
        continue
      folder = tmp_path / 'damaged'
      shutil.copytree(tmp_path / 'made', folder)
      damage(folder / file, how)
      tried += 1
      with pytest.raises(Damaged, match=f'^{re.escape(str(folder / file))}'):
        load(folder / '6', shapes_of(states[6]))
      if how == 'middle':
        with Checkpoints(folder, keep=2) as checkpoints:
          found = checkpoints.restore(shapes_of(states[6]), lambda about: None)
        assert_same(found.state, states[3])
        assert found.notes == [f'checkpoint 6 is damaged: {folder / file} has changed: went on from step 3']
        assert steps_in(folder) == [3]
      shutil.rmtree(folder)
  assert tried >= 55


def test_where_none_is_whole_nothing_is_thrown_away(tmp_path):
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
    f'{folder}/3/manifest.json has changed: none is whole; delete {tmp_path} to start this run over'
  )
  assert steps_in(folder) == [6, 3]


@pytest.mark.filterwarnings('ignore')
def test_values_that_changed_before_they_were_written_are_not_loaded(tmp_path, monkeypatch):
  """The files are whole then, and the checksum of the array is what tells."""
  state = state_of()
  params = jax.tree.map(lambda leaf: leaf, state.params)
  params['head']['kernel'] = params['head']['kernel'].at[3, 2].multiply(-1)
  save = ocp.save_checkpointables_async
  wrong = dataclasses.replace(state, params=params)
  monkeypatch.setattr(ocp, 'save_checkpointables_async', lambda path, _: save(path, {'state': wrong}))
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state, ABOUT)
  with pytest.raises(Damaged, match=r"1: \.params\['head'\]\['kernel'\] is not what was saved"):
    load(tmp_path / '1', shapes_of(state))


def test_a_save_that_was_killed_is_cleared_away(tmp_path):
  for name in ('9.saving', '9.saving.orbax-checkpoint-tmp'):
    (tmp_path / name / 'state').mkdir(parents=True)
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    assert checkpoints.restore(state_of(), lambda about: None) is None
    checkpoints.save(state_of(step=9), ABOUT)
  assert os.listdir(tmp_path) == ['9']


def test_a_checkpoint_that_is_refused_is_not_damaged(tmp_path):
  def refuse(about):
    raise ConfigError('of another run')

  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state_of(), ABOUT)
    checkpoints.wait()
    with pytest.raises(ConfigError, match=r'^of another run$'):
      checkpoints.restore(state_of(), refuse)
  assert steps_in(tmp_path) == [1]


@pytest.mark.filterwarnings('ignore')  # orbax leaves coroutines behind when it fails
@pytest.mark.parametrize(
  'changes',
  [
    {'model.d_model': 16},
    {'model.num_layers': 1},
    {'model.vocab_size': 12},
    {'model.use_bias': False},
    {'model.qk_norm': True},
    {'optimizer.name': 'sgd'},
  ],
)
def test_a_state_of_another_shape_is_refused(tmp_path, changes):
  other = shapes_of(state_of(CONFIG.replace(changes)))
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state_of(), ABOUT)
    checkpoints.wait()
    with pytest.raises(Exception, match='state'):
      checkpoints.restore(other, lambda about: None)
  gc.collect()


@pytest.mark.slow
def test_a_failed_save_does_not_keep_the_process(tmp_path):
  """Orbax's threads would wait 20 minutes for a folder that nobody makes."""
  program = f"""
import shutil, pathlib, jax.numpy as jnp
from training.checkpoint import Checkpoints
from training.step import State
folder = pathlib.Path({str(tmp_path / 'checkpoints')!r})
with Checkpoints(folder, keep=1) as checkpoints:
  shutil.rmtree(folder)
  folder.write_text('a file in its place')
  checkpoints.save(State(jnp.int32(1), {{'a': jnp.ones(3)}}, (), jnp.uint32(0), jnp.int32(0), jnp.int32(0)), {{}})
"""
  ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=60)
  assert ended.returncode == 1
  assert 'checkpoints' in ended.stderr
  assert 'deprecated' not in ended.stderr
