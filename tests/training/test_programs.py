import jax
import numpy as np
import pytest

from model.config import ModelConfig
from training import programs
from training.config import Config, DataConfig, RunConfig
from training.mesh import make_mesh

CONFIG = Config(
  model=ModelConfig(vocab_size=11, num_layers=1, d_model=8, num_heads=2, d_ff=12),
  data=DataConfig(task='copy', sequence_length=8),
  run=RunConfig(steps=21, batch_size=4),
)


def batch_of(rows: int) -> dict[str, np.ndarray]:
  tokens = (np.arange(9) * 3 + np.arange(rows)[:, None]) % 11
  return {
    'inputs_BT': tokens[:, :-1].astype(np.int32),
    'targets_BT': tokens[:, 1:].astype(np.int32),
    'weights_BT': np.ones((rows, 8), np.float32),
  }


def same_bits(one, other) -> bool:
  pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


@pytest.fixture
def compilations(monkeypatch):
  """The names of the compiled functions; they are compiled without optimisation."""
  names: list[str] = []

  def compile_quickly(function, *arguments):
    names.append(function.__name__)
    options = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
    return function.lower(*arguments).compile(compiler_options=options)

  monkeypatch.setattr(programs, 'compile_with_cache', compile_quickly)
  programs._compile.cache_clear()
  yield names
  programs._compile.cache_clear()


@pytest.mark.slow
def test_three_programs_serve_all_seeds(compilations):
  compiled = programs.programs_for(CONFIG)
  assert compilations == ['init', 'train_step', 'evaluation_step']
  assert programs.programs_for(CONFIG.replace({'run.init_seed': 3, 'data.seed': 5})) is compiled
  assert len(compilations) == 3
  zero, one = compiled.init(np.uint32(0)), compiled.init(np.uint32(1))
  assert (int(one.step), int(one.init_seed)) == (0, 1)
  assert same_bits(zero, compiled.init(np.uint32(0)))
  assert not same_bits(zero.params, one.params)

  few, many = batch_of(4), batch_of(programs.evaluation_size(CONFIG))
  many['weights_BT'][4:] = 0  # its first rows are those of the small batch
  nats, scored = compiled.evaluation_step(zero.params, many)
  assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(zero.params))
  after, metrics = compiled.train_step(zero, few)
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves((zero.params, zero.optimizer)))  # donated
  assert float(metrics['scalars']['train/loss']) == pytest.approx(float(nats / scored), rel=1e-5)
  assert (int(after.step), float(scored)) == (1, 32)


@pytest.mark.parametrize('length', [1, 64, 100, 1024, 2048, 9999, 10**6])
def test_evaluation_batches_have_about_the_same_number_of_tokens(length):
  rows = programs.evaluation_size(Config().replace({'data.sequence_length': length}))
  assert rows >= 1
  assert rows == 1 or rows * length <= programs.EVALUATION_TOKENS
  assert (rows + 1) * length > programs.EVALUATION_TOKENS


def test_batches_have_document_numbers_if_documents_are_masked():
  masked = CONFIG.replace({
    'data.task': 'files', 'data.paths': 'a.txt', 'data.end_token': 'end', 'data.mask_documents': True
  })  # fmt: skip
  for program, rows in ((programs.train_program, 4), (programs.evaluation_program, programs.evaluation_size(CONFIG))):
    for config, documents in ((CONFIG, None), (masked, ((rows, 8), np.int32))):
      shapes = program(config, make_mesh(config))[2]
      assert {name: (shape.shape, shape.dtype) for name, shape in shapes.items()} == {
        'inputs_BT': ((rows, 8), np.int32), 'targets_BT': ((rows, 8), np.int32), 'weights_BT': ((rows, 8), np.float32),
      } | ({'documents_BT': documents} if documents else {})  # fmt: skip
