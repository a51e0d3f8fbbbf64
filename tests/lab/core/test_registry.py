import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.core import plan, registry
from lab.core.experiment import Experiment
from model.counts import flops_per_token, num_parameters
from training.config import Config, ConfigError
from training.state import init_state
from training.step import make_train_step

NAMES = registry.experiment_names()
GRID = ('optimizer.learning_rate', 'model.num_layers')  # variants that differ only in these are tested once
TINY = {
  'model.vocab_size': 16, 'model.num_layers': 2, 'model.d_model': 16, 'model.unroll': 1, 'data.sequence_length': 8,
  'run.batch_size': 2,
}  # fmt: skip
QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}  # to compile, not to run


def test_experiments_are_found_and_other_modules_are_not():
  assert {'block', 'norm_placement', 'glu_variants', 'residual', 'heads', 'initialisation'} <= set(NAMES)
  assert not {'plan', 'report', 'registry', 'experiment'} & set(NAMES)


def test_an_unknown_reproduction_suggests_the_most_similar_name():
  with pytest.raises(ConfigError, match="unknown reproduction 'rank_colapse': did you mean 'rank_collapse'"):
    registry.find_reproduction('rank_colapse')


def test_an_unknown_experiment_suggests_the_most_similar_name():
  with pytest.raises(ConfigError, match="unknown experiment 'bock': did you mean 'block'"):
    registry.find_experiment('bock')


def test_a_removed_experiment_names_its_replacement():
  with pytest.raises(ConfigError, match="experiment 'feed_forward' has been merged into 'glu_variants'"):
    registry.find_experiment('feed_forward')
  assert set(registry.REPLACED_BY.values()) <= set(NAMES)


@pytest.mark.parametrize('name', NAMES)
def test_an_experiment_has_a_question_and_documents_its_command(name):
  experiment = registry.find_experiment(name)
  assert experiment.name == name
  assert experiment.question.endswith('?')
  has_grid = name in registry.reproduction_names()  # some of which have too many runs for five seeds
  assert len(experiment.seeds) >= (2 if has_grid else 5)
  module = __import__(f'experiments.{name}', fromlist=['EXPERIMENT'])
  assert f'python train.py --experiment={name}' in module.__doc__


@pytest.mark.parametrize('name', NAMES)
def test_every_run_of_an_experiment_has_its_own_directory(name, tmp_path):
  experiment = registry.find_experiment(name)
  runs = plan.plan_runs(experiment, Config(), {}, tmp_path)
  assert len({run.directory for run in runs}) == len(runs) == len(experiment.variants) * len(experiment.seeds)


def test_the_variants_of_heads_have_equal_parameters_and_flops(tmp_path):
  runs = plan.plan_runs(registry.find_experiment('heads'), Config(), {}, tmp_path)
  assert len({num_parameters(run.config.model) for run in runs}) == 1
  assert len({flops_per_token(run.config.model, 64) for run in runs}) == 1


@functools.cache
def two_steps(config: Config):
  """The loss before each of two steps, and the parameters before and after them."""
  tokens = np.random.default_rng(0).integers(0, 16, (2, 9), np.int32)
  batch = {'inputs_BT': tokens[:, :-1], 'targets_BT': tokens[:, 1:], 'weights_BT': np.ones((2, 8), np.float32)}
  state = jax.jit(functools.partial(init_state, config), compiler_options=QUICK)(0)
  step, initial, losses = jax.jit(make_train_step(config), compiler_options=QUICK), state.params, []
  for _ in range(2):
    state, metrics = step(state, batch)
    losses.append(float(metrics['scalars']['train/loss']))
  return losses, initial, state.params


def variants() -> list[tuple[str, str]]:
  """Every variant, except those that differ from an earlier one only in the learning rate or the depth."""
  found = []
  for name in NAMES:
    earlier = []
    for variant, changes in registry.find_experiment(name).variants.items():
      rest = {path: value for path, value in changes.items() if path not in GRID}
      if rest not in earlier:
        earlier.append(rest)
        found.append((name, variant))
  return found


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'variant'), variants())
def test_every_variant_takes_two_steps_and_differs_from_the_baseline(name, variant, tmp_path):
  experiment = registry.find_experiment(name)
  runs = plan.plan_runs(plan.select(experiment, [], [0]), Config(), TINY, tmp_path)
  config = {run.variant: run.config for run in runs}
  losses, initial, params = two_steps(config[variant])
  assert np.all(np.isfinite(losses))
  assert any(jnp.any(a != b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(initial), strict=True))
  if variant != experiment.baseline:
    assert two_steps(config[experiment.baseline])[0] != losses


def test_an_experiment_only_needs_a_question_and_variants():
  experiment = Experiment(question='?', variants={'a': {}, 'b': {'model.qk_norm': True}})
  assert experiment.baseline == 'a'
