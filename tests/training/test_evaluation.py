import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import model
from model.config import ModelConfig
from model.counts import flops_per_token
from training import evaluation
from training.config import Config, DataConfig, RunConfig
from training.data.corpus import Segment
from training.data.dataset import Dataset
from training.data.loading import Data
from training.mesh import make_mesh
from training.programs import Programs, evaluation_size
from training.scoring import Scoring
from training.state import State
from training.step import has_diverged, make_evaluation_step

CONFIG = Config(
  model=ModelConfig(vocab_size=11, num_layers=1, d_model=8, num_heads=2, d_ff=12),
  data=DataConfig(task='copy', sequence_length=8),
  run=RunConfig(batch_size=4, evaluation_batches=5),
)


class Sequences(Dataset):
  """Random tokens, with a different random share of scored tokens in each sequence."""

  def __init__(self, size: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    self.tokens = rng.integers(11, size=(size, 9)).astype(np.int32)
    self.weights = (rng.random((size, 8)) < rng.random((size, 1))).astype(np.float32)

  def __len__(self) -> int:
    return len(self.tokens)

  def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
    tokens = self.tokens[rows]
    return {'inputs_BT': tokens[:, :-1], 'targets_BT': tokens[:, 1:], 'weights_BT': self.weights[rows].copy()}


class Counting:
  """An evaluation step without a model: the loss of a target is its token; records its batches."""

  def __init__(self):
    self.batches = []

  def __call__(self, params, batch):
    self.batches.append(batch)
    return jnp.float32((batch['targets_BT'] * batch['weights_BT']).sum()), jnp.float32(batch['weights_BT'].sum())


def programs_with(evaluation_step) -> Programs:
  return Programs(make_mesh(CONFIG), init=None, train_step=None, evaluation_step=evaluation_step)  # type: ignore[arg-type]


@functools.cache
def compiled():
  """(evaluation step, the logits of one sequence, parameters)."""
  options = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
  quick_jit = functools.partial(jax.jit, compiler_options=options)
  params = quick_jit(functools.partial(model.init, CONFIG.model))(jax.random.key(3))
  logits = quick_jit(lambda params, tokens_BT: model.apply(CONFIG.model, params, tokens_BT)[0])
  return quick_jit(make_evaluation_step(CONFIG)), logits, params


def nats_one_by_one(source: Sequences, rows) -> tuple[float, float]:
  """The summed loss and the number of scored tokens, a sequence at a time, in float64."""
  _, logits, params = compiled()
  nats = scored = 0.0
  for row in rows:
    logits_TV = np.asarray(logits(params, source.tokens[row : row + 1, :-1])[0], np.float64)
    log_shares = logits_TV - np.log(np.exp(logits_TV).sum(-1, keepdims=True))
    nats -= np.sum(log_shares[np.arange(8), source.tokens[row, 1:]] * source.weights[row])
    scored += source.weights[row].sum()
  return nats, scored


@pytest.mark.parametrize('extra', [-1, 0, 1, 40])
def test_the_loss_of_a_split_is_the_mean_over_all_its_tokens(extra):
  source = Sequences(evaluation_size(CONFIG) + extra)
  step, _, params = compiled()
  nats, scored = nats_one_by_one(source, range(len(source)))
  assert Scoring(CONFIG, programs_with(step), params).mean_loss('split', source) == pytest.approx(
    nats / scored, rel=1e-5
  )


def test_all_batches_have_the_same_shape_and_every_target_counts_once():
  step, source = Counting(), Sequences(2 * evaluation_size(CONFIG) + 3)
  loss = Scoring(CONFIG, programs_with(step), None).mean_loss('split', source)
  assert [batch['inputs_BT'].shape for batch in step.batches] == [(evaluation_size(CONFIG), 8)] * 3
  assert loss == pytest.approx((source.tokens[:, 1:] * source.weights).sum() / source.weights.sum(), rel=1e-6)


def test_sums_are_taken_in_double_precision():
  sums = iter([(2.0**24, 2.0**24), (1.0, 1.0), (1.0, 1.0)])
  step = programs_with(lambda params, batch: tuple(jnp.float32(x) for x in next(sums)))
  loss = Scoring(CONFIG, step, None).mean_loss('split', Sequences(2 * evaluation_size(CONFIG) + 3))
  assert loss == (2**24 + 2) / (2**24 + 2)
  sums = iter([(2.0**24, 2.0**24), (1.0, 0.0), (1.0, 0.0)])
  step = programs_with(lambda params, batch: tuple(jnp.float32(x) for x in next(sums)))
  assert (
    Scoring(CONFIG, step, None).mean_loss('split', Sequences(2 * evaluation_size(CONFIG) + 3)) == (2**24 + 2) / 2**24
  )


class Bytes:
  """The parts of a corpus that an evaluation uses: a segment of 10 scored tokens in each split."""

  text_checksum = 'c' * 64

  def bytes_per_token(self, split):
    return {'validation': 2.0, 'test': 4.0}[split]

  def segments_of(self, split):
    return [Segment(split, 0, 11, round(10 * self.bytes_per_token(split)))]


def scoring_with(evaluation_step) -> Scoring:
  return Scoring(CONFIG, programs_with(evaluation_step), None)


def data_of(validation: Dataset, test: Dataset, corpus=None) -> Data:
  return Data(11, 'checksum', Sequences(5), validation, test, corpus)


def test_the_validation_curve_uses_a_fixed_evenly_spread_subset():
  source, step = Sequences(1000), Counting()
  data = data_of(source, Sequences(10))
  points = [evaluation.validate(CONFIG, data, scoring_with(step)) for _ in range(2)]
  rows = range(0, 1000, 50)  # 20 = 5 batches of 4
  expected = (source.tokens[rows, 1:] * source.weights[rows]).sum() / source.weights[rows].sum()
  assert points[0] == points[1] == {'validation/loss': pytest.approx(expected, rel=1e-6)}


def test_bits_per_byte_of_text():
  data = data_of(Sequences(8), Sequences(8, seed=1), Bytes())
  point = evaluation.validate(CONFIG, data, scoring_with(Counting()))
  assert list(point) == ['validation/loss', 'validation/bits_per_byte']
  assert point['validation/bits_per_byte'] == pytest.approx(point['validation/loss'] / math.log(2) / 2)


@pytest.mark.parametrize(
  ('on_nonfinite', 'in_a_row', 'diverged'),
  [('stop', 0, False), ('stop', 1, True), ('skip', 9, False), ('skip', 10, True)],
)
def test_the_number_of_nonfinite_steps_that_end_a_run(on_nonfinite, in_a_row, diverged):
  assert has_diverged(CONFIG.replace({'run.on_nonfinite': on_nonfinite}), in_a_row) == diverged


def result_of(losses: dict[str, float], nonfinite: int = 0, corpus=None, steps: int = 77):
  """The result of a run whose last state has these losses on the two splits."""
  validation, test = Sequences(50), Sequences(60, seed=1)
  losses_in_turn = iter([losses['validation'], losses['test']])
  scoring = scoring_with(lambda params, batch: (jnp.float32(next(losses_in_turn)), jnp.float32(1)))
  state = State(jnp.int32(steps), None, None, jnp.uint32(0), jnp.int32(nonfinite), jnp.int32(0))
  return evaluation.result_of(CONFIG, state, data_of(validation, test, corpus), scoring), validation


def test_the_result_counts_dropped_updates():
  config = CONFIG.replace({'run.on_nonfinite': 'skip'})
  updates = (None, optax.ScaleByScheduleState(jnp.int32(70)))
  state = State(jnp.int32(77), None, updates, jnp.uint32(0), jnp.int32(3), jnp.int32(0))
  scoring = scoring_with(lambda params, batch: (jnp.float32(1), jnp.float32(1)))
  result = evaluation.result_of(config, state, data_of(Sequences(50), Sequences(60)), scoring)
  assert (result['dropped_updates'], result['status']) == (7, 'completed')
  assert 'dropped_updates' not in result_of({'validation': 1.0, 'test': 1.0})[0]


def entropy_by_hand(source: Sequences) -> float:
  targets = source.tokens[:, 1:][source.weights > 0].tolist()
  shares = [targets.count(symbol) / len(targets) for symbol in set(targets)]
  return -sum(share * math.log(share) for share in shares)


def test_the_result_of_a_run():
  result, validation = result_of({'validation': 1.0, 'test': 1.5}, corpus=Bytes())
  expected = {
    'status': 'completed', 'steps': 77, 'tokens': 77 * 4 * 8, 'learning_rate': 4e-3, 'val_loss': 1.0,
    'test_loss': 1.5, 'diverged_at': None, 'data_checksum': 'checksum',
    'val_bits_per_byte': pytest.approx(1 / math.log(2) / 2),
    'test_bits_per_byte': pytest.approx(1.5 / math.log(2) / 4),
    'unigram_entropy': pytest.approx(entropy_by_hand(validation)),
    'parameters': sum(leaf.size for leaf in jax.tree.leaves(compiled()[2])),
    'flops_per_token': flops_per_token(CONFIG.model, 8), 'final_evaluation_tokens': 524_288,
    'val_tokens': 10, 'val_tokens_of': 10, 'test_tokens': 10, 'test_tokens_of': 10,
    'text_checksum': 'c' * 64,
  }  # fmt: skip
  assert {name: result[name] for name in expected} == expected


def test_a_synthetic_task_has_no_bits_per_byte():
  result, _ = result_of({'validation': 1.0, 'test': 1.5})
  assert 'text_checksum' not in result
  assert (result['val_loss'], result['val_bits_per_byte'], result['test_bits_per_byte']) == (1.0, None, None)


@pytest.mark.parametrize(
  ('share', 'status'), [(0.5, 'completed'), (0.985, 'completed'), (0.995, 'failed_to_learn'), (1.2, 'failed_to_learn')]
)
def test_a_loss_near_the_unigram_entropy_is_failed_to_learn(share, status):
  loss = share * entropy_by_hand(Sequences(50))
  result, _ = result_of({'validation': loss, 'test': 0.1})
  assert (result['status'], result['diverged_at']) == (status, None)
  assert result['val_loss'] == pytest.approx(loss)


@pytest.mark.parametrize(('nonfinite', 'diverged_at'), [(1, 77), (2, 76), (13, 65)])
def test_a_diverged_run_has_no_loss(nonfinite, diverged_at):
  result, _ = result_of({'validation': 1.0, 'test': 1.0}, nonfinite, Bytes())
  assert (result['status'], result['diverged_at'], result['steps']) == ('diverged', diverged_at, 77)
  names = ('val_loss', 'val_bits_per_byte', 'test_loss', 'test_bits_per_byte', 'val_tokens', 'test_tokens')
  assert [result[name] for name in names] == [None] * 6


@pytest.mark.parametrize('losses', [{'validation': math.nan, 'test': 1.0}, {'validation': 1.0, 'test': math.inf}])
def test_a_run_whose_last_update_diverged_is_diverged(losses):
  result, _ = result_of(losses, corpus=Bytes())
  assert (result['status'], result['diverged_at']) == ('diverged', 77)
  assert [result[name] for name in ('val_loss', 'val_bits_per_byte', 'test_loss', 'test_bits_per_byte')] == [None] * 4
