"""A run that does not fit the memory of the machine is refused before anything is read, compiled or written."""

import jax
import numpy as np
import pytest
from in_process import run_main

from model.config import ConfigError
from model.counts import num_parameters
from training.config import Config
from training.memory import check_fits, least_memory, memory_of_machine
from training.state import init_state


@pytest.mark.parametrize('name', ['adamw', 'sgd', 'lion', 'muon'])
def test_the_lower_bound_counts_state_gradient_and_logits(name):
  config = Config().replace({'optimizer.name': name})
  state = jax.eval_shape(lambda seed: init_state(config, seed), jax.ShapeDtypeStruct((), np.uint32))
  held = sum(leaf.size * 4 for leaf in jax.tree.leaves(state)) + 4 * num_parameters(config.model)
  logits = 16 * 64 * 256 * 4
  assert 0.7 * held < least_memory(config) - logits - 3 * 4 * 16 * 64 <= held


def test_only_a_run_that_fits_is_accepted():
  least = least_memory(Config())
  check_fits(Config(), least)
  with pytest.raises(ConfigError, match=r'parameters and a batch of 16 x 64 tokens take at least 0\.0 GB, and this'):
    check_fits(Config(), least - 1)


def test_accumulation_reduces_the_memory_of_the_logits():
  config = Config().replace({'run.batch_size': 1024})
  assert least_memory(config.replace({'optimizer.accumulate': 64})) < least_memory(config) / 2


def test_the_memory_limit_of_a_container_counts(tmp_path):
  unlimited = memory_of_machine(tmp_path)
  for text, expected in (('max', unlimited), (str(2**30), 2**30), (str(2**62), unlimited)):
    (tmp_path / 'memory.max').write_text(text + '\n')
    assert memory_of_machine(tmp_path) == expected


@pytest.mark.parametrize(
  'flags',
  [
    ['--config.model.d_model=400000'],
    ['--config.model.num_layers=2000000000'],
    ['--config.data.task=copy', '--config.data.sequence_length=2000000000'],
    ['--config.run.batch_size=2000000000'],
    ['--config.model.vocab_size=2000000000'],
  ],
)
def test_train_refuses_a_run_that_does_not_fit(tmp_path, monkeypatch, capfd, flags):
  monkeypatch.chdir(tmp_path)
  assert run_main('--name=mine', *flags) == 2
  message = capfd.readouterr().err
  assert 'take at least' in message
  assert message.count('\n') == 1
  assert list(tmp_path.iterdir()) == []
