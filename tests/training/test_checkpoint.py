import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.config import ModelConfig
from model.transformer import param_shapes
from training.checkpoint import Checkpoints
from training.config import Config
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
    checkpoints.save(state)
  with Checkpoints(folder, keep=2) as checkpoints:
    assert checkpoints.latest_step() == 7
    assert_same(checkpoints.restore(7, shapes_of(state)), state)
    assert_same(checkpoints.restore(7, state_of(CONFIG.replace({'optimizer.name': name}), seed=1)), state)


def test_numbers_that_are_not_finite_come_back_too(tmp_path):
  state = jax.tree.map(lambda leaf: leaf.at[...].set(-jnp.nan) if leaf.dtype == np.float32 else leaf, state_of())
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state)
    checkpoints.wait()
    assert_same(checkpoints.restore(1, shapes_of(state)), state)


def test_the_newest_are_kept(tmp_path):
  states = {step: state_of(step=step, seed=step) for step in (3, 6, 9, 12)}
  with Checkpoints(tmp_path, keep=2) as checkpoints:
    assert checkpoints.latest_step() is None
    for state in states.values():
      checkpoints.save(state)
  assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ['12', '9']
  with Checkpoints(tmp_path, keep=2) as checkpoints:
    assert checkpoints.latest_step() == 12
    for step in (9, 12):
      assert_same(checkpoints.restore(step, shapes_of(states[step])), states[step])


def test_a_step_that_is_there_is_not_saved_again(tmp_path):
  with Checkpoints(tmp_path, keep=2) as checkpoints:
    checkpoints.save(state_of(seed=0))
    checkpoints.save(state_of(seed=1))
  with Checkpoints(tmp_path, keep=2) as checkpoints:
    checkpoints.save(state_of(seed=2))
    checkpoints.wait()
    assert_same(checkpoints.restore(1, shapes_of(state_of())), state_of(seed=0))


def test_a_relative_path_will_do(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with Checkpoints(Path('checkpoints'), keep=1) as checkpoints:
    checkpoints.save(state_of())
  assert os.listdir(tmp_path / 'checkpoints') == ['1']


def test_the_memory_may_be_used_again_at_once(tmp_path):
  state = state_of()
  expected = jax.tree.map(np.array, state)
  overwrite = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state)
    for _ in range(3):
      state = overwrite(state)
    checkpoints.wait()
    assert_same(checkpoints.restore(1, shapes_of(state)), expected)


def test_leaving_waits_for_the_save(tmp_path, monkeypatch):
  waited = []
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state_of())
    pending = checkpoints._pending
    monkeypatch.setattr(pending, 'result', lambda result=pending.result: waited.append(result()), raising=False)
  assert len(waited) == 1


def test_leaving_by_an_error_waits_for_the_save(tmp_path):
  def fail():
    with Checkpoints(tmp_path, keep=1) as checkpoints:
      checkpoints.save(state_of())
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    fail()
  with Checkpoints(tmp_path, keep=1) as checkpoints:
    assert_same(checkpoints.restore(1, shapes_of(state_of())), state_of())


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
      monkeypatch.setattr(checkpoints._checkpointer, 'save_checkpointables_async', lambda *args: next(saves))
      checkpoints.save(state_of())
      if then == 'wait':
        checkpoints.wait()
      elif then == 'save':
        checkpoints.save(state_of(step=2))

  with pytest.raises(OSError, match='No space left on device'):
    fail()


def test_a_folder_that_vanished_fails_the_save(tmp_path):
  folder = tmp_path / 'checkpoints'

  def fail():
    with Checkpoints(folder, keep=1) as checkpoints:
      shutil.rmtree(folder)
      folder.write_text('a file in its place')
      checkpoints.save(state_of())

  with pytest.raises(Exception, match='checkpoints'):
    fail()
  assert folder.read_text() == 'a file in its place'


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
    checkpoints.save(state_of())
    checkpoints.wait()
    with pytest.raises(Exception, match='state'):
      checkpoints.restore(1, other)
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
  checkpoints.save(State(jnp.int32(1), {{'a': jnp.ones(3)}}, (), jnp.uint32(0), jnp.int32(0), jnp.int32(0)))
"""
  ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=60)
  assert ended.returncode == 1
  assert 'checkpoints' in ended.stderr
  assert 'deprecated' not in ended.stderr
