"""Shared by the tests of the training step: tiny configs, their compiled programs, batches, states, distances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import model
from model.config import ModelConfig
from model.transformer import param_shapes
from training.config import Config, DataConfig, OptimizerConfig, RunConfig
from training.optimizer import make_optimizer
from training.state import State, init_state
from training.step import make_train_step, weighted_loss

CONFIG = Config(
  model=ModelConfig(vocab_size=11, num_layers=2, d_model=8, num_heads=2),
  data=DataConfig(task='copy', sequence_length=8),
  optimizer=OptimizerConfig(learning_rate=2e-2, warmup_steps=4),
  run=RunConfig(steps=20, batch_size=8, log_every=5),
)
ONES = np.ones((8, 8), np.float32)
QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)
# The update is the clipped gradient, and there is no norm between the stream and the head.
GRADIENT = CONFIG.replace({
  'optimizer.name': 'sgd', 'optimizer.beta1': 0.0, 'optimizer.learning_rate': 1.0, 'optimizer.schedule': 'constant',
  'optimizer.warmup_steps': 0, 'optimizer.weight_decay': 0.0, 'optimizer.clip': 0.5, 'model.connection': 'none',
})  # fmt: skip
SKIP = CONFIG.replace({'run.on_nonfinite': 'skip', 'optimizer.name': 'sgd', 'inspect.level': 'off'})
DROPOUT = CONFIG.replace({
  'model.dropout': 0.3, 'optimizer.name': 'sgd', 'optimizer.clip': 0.0, 'inspect.level': 'off'
})  # fmt: skip


@functools.cache
def compiled_step(config: Config):
  return quick_jit(make_train_step(config))


@functools.cache
def compiled_init(config: Config):
  return quick_jit(functools.partial(init_state, config))


@functools.cache
def compiled_loss(config: Config):
  return quick_jit(lambda params, batch: weighted_loss(config, params, batch, None))


@functools.cache
def compiled_logits(config: ModelConfig):
  return quick_jit(lambda params, tokens: model.apply(config, params, tokens)[0])


def batch_of(number: int) -> dict[str, np.ndarray]:
  """Predictable tokens, computed without random numbers; some targets have weight 0."""
  row, position = np.indices((8, 9))
  tokens = ((3 + number % 2) * position + 5 * row + number) % 11
  weights = ((row + position + number) % 5 > 0)[:, 1:]
  return {
    'inputs_BT': tokens[:, :-1].astype(np.int32),
    'targets_BT': tokens[:, 1:].astype(np.int32),
    'weights_BT': weights.astype(np.float32),
  }


def bad_batch() -> dict[str, np.ndarray]:
  """A batch whose loss is not a number."""
  batch = batch_of(7)
  batch['weights_BT'][2, 3] = np.nan
  return batch


def random_params(config: Config, seed: int = 0):
  """Random parameters of ordinary size, not those of an initialisation."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    noise = rng.normal(size=leaf.shape)
    if path[-1].key == 'kernel':
      noise = noise / leaf.shape[-2] ** 0.5
    return jnp.asarray(1 + 0.1 * noise if path[-1].key == 'gain' else noise, jnp.float32)

  return jax.tree.map_with_path(draw, param_shapes(config.model))


def state_of(config: Config, params=None, step: int = 0, init_seed: int = 0) -> State:
  params = random_params(config) if params is None else params
  optimizer = make_optimizer(config.optimizer, config.run.steps, config.model).init(params)
  return State(jnp.int32(step), params, optimizer, jnp.uint32(init_seed), jnp.int32(0), jnp.int32(0))


def run(config: Config, state: State, batches) -> tuple[State, list[dict]]:
  history = []
  for batch in batches:
    state, metrics = compiled_step(config)(state, batch)
    history.append(metrics)
  return state, history


def same_bits(one, other) -> bool:
  pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def norm(tree) -> float:
  return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))


def difference(one, other):
  return jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), one, other)


def scaled(tree, factor: float):
  return jax.tree.map(lambda leaf: factor * leaf, tree)


def cross_entropy(logits_BTV, batch) -> np.ndarray:
  """Nats of each target, in float64."""
  logits = np.asarray(logits_BTV, np.float64)
  largest = logits.max(-1, keepdims=True)
  log_total = np.log(np.exp(logits - largest).sum(-1)) + largest[..., 0]
  return log_total - np.take_along_axis(logits, np.asarray(batch['targets_BT'])[..., None], -1)[..., 0]


def loss_by_hand(config: Config, params, batch) -> float:
  nats = cross_entropy(compiled_logits(config.model)(params, batch['inputs_BT']), batch)
  return float((nats * batch['weights_BT']).sum() / batch['weights_BT'].sum())


def check_by_finite_differences(gradient, loss, params) -> None:
  """Checks the gradient of `loss` at `params` along the gradient itself and along three random directions."""
  rng = np.random.default_rng(0)
  size = norm(gradient)
  directions = [gradient, *(jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), gradient) for _ in range(3))]
  for direction in directions:
    unit = scaled(direction, 1 / norm(direction))
    ahead, behind = (difference(params, scaled(unit, step)) for step in (-0.005, 0.005))
    slope = (loss(ahead) - loss(behind)) / 0.01
    expected = sum(np.sum(g * u) for g, u in zip(jax.tree.leaves(gradient), jax.tree.leaves(unit), strict=True))
    assert abs(slope - expected) < 2e-3 * size
