"""Accumulation and several devices do not change the metrics of a step."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_steps import CONFIG, DROPOUT, batch_of, quick_jit, random_params, run, state_of

from model.config import ConfigError
from training.step import weighted_loss

PARTS = CONFIG.replace({'optimizer.accumulate': 4, 'inspect.level': 'full', 'model.feed_forward': 'relu'})
WHOLE = PARTS.replace({'optimizer.accumulate': 1})


def assert_same_measures(one, other):
  """Compares all metrics of two steps; inner products relative to the norms of their factors."""
  sizes = jax.tree.map(lambda tap: np.sqrt(tap[..., 0] * tap[..., 1]), one['stream_gradient'])
  for site, size in sizes.items():
    a, b = one['stream_gradient'][site], other['stream_gradient'][site]
    np.testing.assert_allclose(a[..., :2], b[..., :2], rtol=1e-5, atol=1e-9)
    assert (np.abs(a[..., 2] - b[..., 2]) <= 1e-5 * size + 1e-9).all()
  for kind in ('scalars', 'stats', 'parameter_norms'):
    for a, b in zip(jax.tree.leaves(one[kind]), jax.tree.leaves(other[kind]), strict=True):
      np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
def test_accumulation_gives_the_metrics_of_the_whole_batch():
  batch = batch_of(1)
  batch['weights_BT'][1] = 0  # the parts have different numbers of scored tokens
  (whole_state, (whole,)), (state, (parts,)) = (run(config, state_of(config), [batch]) for config in (WHOLE, PARTS))
  assert whole['stream_gradient']['blocks'].shape == (2, 2, 8, 3)
  assert_same_measures(parts, whole)
  for a, b in zip(jax.tree.leaves(state.optimizer), jax.tree.leaves(whole_state.optimizer), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_dropout_differs_from_part_to_part():
  config = DROPOUT.replace({'optimizer.accumulate': 8, 'model.dropout': 0.5})
  same = {name: np.repeat(rows[:1], 8, 0) for name, rows in batch_of(0).items()}  # eight times the same sequence
  one = {name: np.repeat(rows[:1], 1, 0) for name, rows in same.items()}
  _, (metrics,) = run(config, state_of(config), [same])
  key = jax.random.fold_in(jax.random.key(0), 0)
  loss = quick_jit(jax.vmap(lambda key: weighted_loss(config, random_params(config), one, None, key)[0]))
  alone = np.asarray(loss(jax.random.split(key, 8)))
  assert np.std(alone) > 0.05
  assert float(metrics['scalars']['train/loss']) == pytest.approx(np.mean(alone), rel=1e-4)


def test_a_batch_that_does_not_divide_is_refused():
  with pytest.raises(ConfigError, match=r'batch_size=8 does not divide into optimizer.accumulate=3 equal parts'):
    CONFIG.replace({'optimizer.accumulate': 3})


@pytest.mark.slow
def test_accumulation_on_eight_devices_gives_the_numbers_of_one():
  """The batch is split over eight devices, with a row on each, with and without accumulation."""
  code = """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import test_step_in_parts as test
assert len(jax.devices()) == 8
rows = NamedSharding(jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,)), PartitionSpec('data'))
batch = {name: np.concatenate([rows, rows]) for name, rows in test.batch_of(1).items()}
batch['weights_BT'][1] = 0
for config in (test.WHOLE, test.PARTS.replace({'optimizer.accumulate': 2})):
  config = config.replace({'run.batch_size': 16})
  _, (one,) = test.run(config, test.state_of(config), [batch])
  _, (eight,) = test.run(config, test.state_of(config), [jax.device_put(batch, rows)])
  test.assert_same_measures(jax.device_get(eight), jax.device_get(one))
"""
  folders = [str(Path(__file__).parent), str(Path(__file__).parent.parent.parent)]
  environment = os.environ | {
    'XLA_FLAGS': '--xla_force_host_platform_device_count=8', 'PYTHONPATH': os.pathsep.join(folders)
  }  # fmt: skip
  subprocess.run([sys.executable, '-c', code], env=environment, check=True)
