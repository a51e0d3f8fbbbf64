import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax import contrib

from model.config import ModelConfig
from model.transformer import param_shapes
from training.config import OptimizerConfig
from training.optimizer import decayed, hidden_kernels, make_optimizer, make_schedule, updates_in_common

# Every kind of parameter: biases, gains, learned positions, ReZero's scales, norms of queries and keys.
EVERYTHING = ModelConfig(
  vocab_size=11, num_layers=3, d_model=8, num_heads=2, norm='layer', use_bias=True, position='learned', rezero=True,
  qk_norm=True, embedding_norm=True,
)  # fmt: skip
SHAPES = param_shapes(EVERYTHING)
KERNELS_OF_A_BLOCK = {
  f'blocks/{name}/kernel'
  for name in (
    'attention/query', 'attention/key', 'attention/value', 'attention/output',
    'feed_forward/gate', 'feed_forward/up', 'feed_forward/down',
  )
}  # fmt: skip


QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
ONE_MATRIX = {'x': contrib.MuonDimensionNumbers(reduction_axis=0, output_axis=1)}


def named(tree) -> dict:
  """Leaves by path, 'blocks/attention/query/kernel'."""
  return {'/'.join(key.key for key in path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


FEW = {
  'blocks': {  # more layers than any other size
    'attention': {'query': {'kernel': (8, 4, 6)}},
    'feed_forward': {'down': {'kernel': (8, 7, 4)}},
    'attention_norm': {'gain': (8, 4)},
  },
  'embedding': {'token': (5, 4)},
  'head': {'kernel': (4, 5), 'bias': (5,)},
}


def random_tree(seed: int, scale: float = 1.0):
  """Parameters or gradients of a few kinds, structured as in a model."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda shape: jnp.asarray(scale * rng.normal(size=shape), jnp.float32), FEW, is_leaf=lambda x: isinstance(x, tuple)
  )


def rate_by_hand(config: OptimizerConfig, steps: int, update: int) -> float:
  """The learning rate of an update, counted from 1."""
  peak, warmup = config.learning_rate, config.warmup_steps
  if update <= warmup:
    return peak * update / warmup
  done = (update - 1 - warmup) / (steps - warmup)  # share of the updates after the warm-up, before this one
  decay = max(1, round(config.decay_fraction * steps))
  decayed = max(0, update - 1 - (steps - decay)) / decay  # share of the decay
  return (
    peak
    * {
      'constant': 1.0,
      'linear': 1 - done * (1 - config.final_fraction),
      'cosine': config.final_fraction + (1 - config.final_fraction) * (1 + math.cos(math.pi * done)) / 2,
      'wsd': config.final_fraction + (1 - config.final_fraction) * (1 - math.sqrt(decayed)),
    }[config.schedule]
  )


@pytest.mark.parametrize('schedule', ['cosine', 'linear', 'constant', 'wsd'])
@pytest.mark.parametrize(('steps', 'warmup_steps'), [(50, 10), (50, 0), (50, 1), (5, 4), (1, 0)])
def test_the_learning_rate_of_every_update(schedule, steps, warmup_steps):
  decay = {'decay_fraction': 0.2 if steps > 1 else 1.0} if schedule == 'wsd' else {}
  config = OptimizerConfig(
    learning_rate=3e-3, schedule=schedule, warmup_steps=warmup_steps, final_fraction=0.2, **decay
  )
  rates = jax.vmap(make_schedule(config, steps))(jnp.arange(steps))
  np.testing.assert_allclose(rates, [rate_by_hand(config, steps, k + 1) for k in range(steps)], rtol=2e-6)
  assert rates[0] > 0
  assert rates[warmup_steps or 0] == pytest.approx(3e-3)
  if steps == 50 and schedule != 'constant':
    assert 0.2 * 3e-3 < rates[-1] < (0.25 if schedule == 'wsd' else 0.23) * 3e-3  # 1 - sqrt is flat at the end


@pytest.mark.parametrize('schedule', ['cosine', 'linear', 'constant', 'wsd'])
@pytest.mark.parametrize('warmup_steps', [0, 6])
def test_the_updates_in_common_with_a_longer_run(schedule, warmup_steps):
  steps = 37
  config = OptimizerConfig(schedule=schedule, warmup_steps=warmup_steps)
  common = updates_in_common(config, steps)
  for longer in (steps + 1, 3 * steps):
    rates, others = (jax.vmap(make_schedule(config, total))(jnp.arange(steps)) for total in (steps, longer))
    np.testing.assert_array_equal(rates[:common], others[:common])
    assert (rates[common:] != others[common:]).all()


def test_only_kernels_decay():
  assert {path for path, decays in named(decayed(SHAPES)).items() if decays} == KERNELS_OF_A_BLOCK | {'head/kernel'}
  assert {'embedding/token', 'embedding/position', 'head/bias', 'final_norm/gain', 'blocks/attention_scale'} < set(
    named(SHAPES)
  )


def test_hidden_kernels_are_those_of_the_blocks():
  assert {path for path, hidden in named(hidden_kernels(SHAPES)).items() if hidden} == KERNELS_OF_A_BLOCK


def orthogonalised(matrix: np.ndarray) -> np.ndarray:
  """Five quintic Newton-Schulz iterations on one matrix (Jordan et al. 2024)."""
  x = matrix / np.linalg.norm(matrix)
  x = x.T if matrix.shape[0] > matrix.shape[1] else x
  for _ in range(5):
    gram = x @ x.T
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
  return x.T if matrix.shape[0] > matrix.shape[1] else x


def adamw(config, path, state, g, t):
  m, v = state
  m, v = config.beta1 * m + (1 - config.beta1) * g, config.beta2 * v + (1 - config.beta2) * g**2
  unbiased_m, unbiased_v = m / (1 - config.beta1**t), v / (1 - config.beta2**t)
  return (m, v), unbiased_m / (np.sqrt(unbiased_v) + config.epsilon)


def sgd(config, path, state, g, t):
  momentum = config.beta1 * state[0] + g
  return (momentum, None), momentum


def lion(config, path, state, g, t):
  direction = np.sign(config.beta1 * state[0] + (1 - config.beta1) * g)
  return (config.beta2 * state[0] + (1 - config.beta2) * g, None), direction


def muon(config, path, state, g, t):
  if not (path.startswith('blocks/') and path.endswith('/kernel')):
    return adamw(config, path, state, g, t)
  beta = config.beta1
  m = beta * state[0] + (1 - beta) * g
  nesterov = beta * m / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
  turned = np.stack([orthogonalised(layer) for layer in nesterov])
  return (m, None), 0.2 * max(g.shape[1:]) ** 0.5 * turned


RULES = {'adamw': adamw, 'sgd': sgd, 'lion': lion, 'muon': muon}


def run(config: OptimizerConfig, gradients: list, steps: int = 9) -> list[dict]:
  """The parameters after each update, from the optimizer."""
  optimizer, params = make_optimizer(config, steps), random_tree(0)
  state, update, history = optimizer.init(params), jax.jit(optimizer.update, compiler_options=QUICK), []
  for gradient in gradients:
    updates, state = update(gradient, state, params)
    params = jax.tree.map(np.add, params, updates)
    history.append(named(params))
  return history


def run_by_hand(config: OptimizerConfig, gradients: list, steps: int = 9) -> list[dict]:
  """The same in float64, from the algorithms in the papers."""
  params = {path: np.asarray(leaf, np.float64) for path, leaf in named(random_tree(0)).items()}
  states = {path: (np.zeros_like(leaf), np.zeros_like(leaf)) for path, leaf in params.items()}
  history = []
  for t, tree in enumerate(gradients, 1):
    gradient = {path: np.asarray(leaf, np.float64) for path, leaf in named(tree).items()}
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in gradient.values()))
    clipping = min(1.0, config.clip / norm) if config.clip else 1.0
    for path, g in gradient.items():
      states[path], direction = RULES[config.name](config, path, states[path], g * clipping, t)
      decay = config.weight_decay if path.endswith('/kernel') else 0.0
      params[path] = params[path] - rate_by_hand(config, steps, t) * (direction + decay * params[path])
    history.append(dict(params))
  return history


@pytest.mark.parametrize('name', RULES)
@pytest.mark.parametrize('clip', [0.0, 3.0])
def test_five_updates_by_hand(name, clip):
  config = OptimizerConfig(
    name=name, learning_rate=0.05, warmup_steps=3, beta1=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.3, clip=clip
  )
  if name == 'muon':
    config = dataclasses.replace(config, epsilon=1e-8)
  scales = [1.0, 0.01, 10.0, 0.1, 1.0]  # norms of about 22 and 220 are clipped; those of .2 and 2.2 are not
  gradients = [random_tree(seed + 1, scale) for seed, scale in enumerate(scales)]
  for ours, by_hand in zip(run(config, gradients), run_by_hand(config, gradients), strict=True):
    assert ours.keys() == by_hand.keys()
    for path, leaf in ours.items():
      np.testing.assert_allclose(leaf, by_hand[path], rtol=2e-5, atol=4e-6, err_msg=path)


def test_muon_orthogonalises_each_layer_separately():
  config = OptimizerConfig(name='muon', learning_rate=1.0, schedule='constant', warmup_steps=0, weight_decay=0, clip=0)
  optimizer, params = make_optimizer(config, steps=10), random_tree(0)
  layers = jnp.logspace(-3, 3, 8)[:, None]  # of very different norms
  scaled = jax.tree.map(lambda leaf: leaf * (layers if leaf.ndim == 2 else layers[..., None]), random_tree(7)['blocks'])
  tree = random_tree(7) | {'blocks': scaled}
  update, _ = jax.jit(optimizer.update, compiler_options=QUICK)(tree, optimizer.init(params), params)
  alone = contrib.scale_by_muon(beta=config.beta1, eps=1e-8, weight_dimension_numbers=ONE_MATRIX)
  update_alone = jax.jit(lambda x: alone.update({'x': x}, alone.init({'x': x}))[0]['x'], compiler_options=QUICK)
  for path in ('blocks/attention/query/kernel', 'blocks/feed_forward/down/kernel'):
    for gradient, moved in zip(named(tree)[path], named(update)[path], strict=True):
      turned = -np.asarray(moved, np.float64) / (0.2 * max(gradient.shape) ** 0.5)
      values = np.linalg.svd(turned, compute_uv=False)
      assert len(values) == 4
      assert 0.6 < values.min() <= values.max() < 1.3
      left, _, right = np.linalg.svd(np.asarray(gradient, np.float64), full_matrices=False)
      assert np.sum(turned * (left @ right)) / np.linalg.norm(turned) / 2 > 0.97
      assert np.sqrt(np.mean(np.square(moved))) == pytest.approx(0.2, rel=0.25)  # as large as AdamW's
      np.testing.assert_allclose(turned, update_alone(gradient), atol=2e-3)
