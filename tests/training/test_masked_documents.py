"""Training on windows of several masked documents equals training on one document per row."""

import jax
import numpy as np
import pytest
from tiny_steps import CONFIG, batch_of, quick_jit, random_params, state_of

from training.step import make_evaluation_step, make_train_step

MASKED = CONFIG.replace({
  'data.task': 'files', 'data.paths': 'a.txt', 'data.end_token': 'end', 'data.mask_documents': True,
})  # fmt: skip


def joined() -> dict[str, np.ndarray]:
  """Eight windows of two documents each, with different boundaries."""
  documents = np.arange(8) > np.arange(8)[:, None] % 6
  return batch_of(1) | {'documents_BT': documents.astype(np.int32)}


def separate() -> dict[str, np.ndarray]:
  """The same sixteen documents, one per row; the rest of each row is not scored."""
  rows: list[dict] = []
  batch = joined()
  for row, number in np.ndindex(8, 2):
    places = np.flatnonzero(batch['documents_BT'][row] == number)
    alone = {name: np.zeros(8, batch[name].dtype) for name in ('inputs_BT', 'targets_BT', 'weights_BT')}
    for name, values in alone.items():
      values[: len(places)] = batch[name][row, places]
    rows.append(alone)
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.slow
@pytest.mark.parametrize('parts', [1, 4])
def test_a_step_on_masked_documents_equals_one_on_separate_documents(parts):
  one = MASKED.replace({'optimizer.accumulate': parts})
  other = CONFIG.replace({'run.batch_size': 16})
  after, metrics = quick_jit(make_train_step(one))(state_of(one), joined())
  expected, by_document = quick_jit(make_train_step(other))(state_of(other), separate())
  for name, value in metrics['scalars'].items():
    assert float(value) == pytest.approx(float(by_document['scalars'][name]), rel=2e-5), name
  for found, reference in zip(jax.tree.leaves(after.params), jax.tree.leaves(expected.params), strict=True):
    np.testing.assert_allclose(found, reference, atol=1e-4)
  stream = metrics['stream_gradient']['blocks'], by_document['stream_gradient']['blocks']
  np.testing.assert_allclose(*stream, rtol=1e-4, atol=1e-5)


def test_the_loss_of_masked_documents_equals_that_of_separate_documents():
  params = random_params(CONFIG)
  scores = [
    quick_jit(make_evaluation_step(config))(params, batch)
    for config, batch in ((MASKED, joined()), (CONFIG, separate()), (CONFIG, batch_of(1)))
  ]
  masked, by_document, unmasked = (float(nats / scored) for nats, scored in scores)
  assert masked == pytest.approx(by_document, rel=1e-6)
  assert abs(masked / unmasked - 1) > 0.003
