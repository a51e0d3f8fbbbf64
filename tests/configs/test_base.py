import jax
import pytest

from configs.base import get_config
from model.counts import num_parameters
from training.mesh import make_mesh
from training.programs import train_program


def test_base_has_the_size_of_gpt_2_small():
  model = get_config().model
  assert round(num_parameters(model) / 1e6) == 86
  with_words = get_config().replace({'model.vocab_size': 50304}).model
  assert round(num_parameters(with_words) / 1e6) == 124  # Radford et al. 2019, as their released weights have it


@pytest.mark.slow
def test_a_step_of_base_fits_a_large_gpu():
  config = get_config()
  step, state, batch = train_program(config, make_mesh(config))
  compiled = step.lower(state, batch).compile()
  after, metrics = compiled.out_info
  assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
    lambda leaf: (leaf.shape, leaf.dtype), state
  )
  assert metrics['stream_gradient']['blocks'].shape == (12, 2, 3)
  memory = compiled.memory_analysis()
  assert memory is not None
  numbers = num_parameters(config.model)
  assert memory.argument_size_in_bytes >= 3 * 4 * numbers  # parameters and both moments, float32
  assert 10e9 < memory.temp_size_in_bytes < 40e9
