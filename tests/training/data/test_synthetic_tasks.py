import math

import numpy as np
import pytest

from training.config import ConfigError, DataConfig
from training.data.synthetic_tasks import MIN_LENGTHS, VOCAB_SIZES, Synthetic

TASKS = ('copy', 'associative_recall')


def split_of(task: str, split='train', **settings) -> Synthetic:
  return Synthetic(DataConfig(task=task, **settings), split)


def sequence(row) -> list[int]:
  return [row['inputs_T'][0], *row['targets_T']]


@pytest.mark.parametrize('length', [2, 3, 64, 65])
def test_copy_repeats_a_string_and_scores_the_repetition(length):
  for row in (split_of('copy', sequence_length=length)[i] for i in range(20)):
    tokens, half = sequence(row), length // 2
    assert tokens[half] == 64
    assert tokens[:half] == tokens[half + 1 : 2 * half + 1]
    assert max(tokens[:half]) < 64
    assert row['weights_T'].tolist() == [0] * half + [1] * half + [0] * (length % 2)
    assert row['inputs_T'].tolist() == tokens[:-1]


@pytest.mark.parametrize('length', [7, 8, 9, 63, 64, 400])
def test_associative_recall_queries_the_value_of_each_key(length):
  for row in (split_of('associative_recall', sequence_length=length)[i] for i in range(20)):
    tokens, memory, answers = sequence(row), {}, 0
    queried = []
    for index in range(0, length, 2):
      key, value = tokens[index : index + 2]
      scored = row['weights_T'][index : index + 2].tolist()  # of the value, and of the next key
      if (weight := scored[0]) == 0:
        assert key not in memory
        memory[key] = value
      else:
        assert memory[key] == value
        queried.append(key)
        answers += 1
      assert weight in (0, 1)
      assert scored[1:] in ([0], [])
    assert len(memory) == min((length + 1) // 4, 64)
    assert len(memory) + answers == (length + 1) // 2
    assert set(queried[: len(memory)]) == set(memory)
    assert max(memory) < 64 <= min(memory.values())
  assert queried != list(memory)[: len(queried)] or length < 9


@pytest.mark.parametrize('task', TASKS)
def test_scored_targets_are_uniform_and_tokens_are_within_the_vocabulary(task):
  rows = split_of(task, 'validation').batch(np.arange(1024))
  scored = rows['targets_BT'][rows['weights_BT'] > 0]
  shares = np.unique(scored, return_counts=True)[1] / scored.size
  assert -(shares * np.log(shares)).sum() == pytest.approx(math.log(64), abs=0.01)
  assert rows['targets_BT'].max() == VOCAB_SIZES[task] - 1
  assert (rows['inputs_BT'].dtype, rows['weights_BT'].dtype) == (np.int32, np.float32)


@pytest.mark.parametrize('task', TASKS)
def test_a_sequence_is_a_function_of_seed_split_and_index(task):
  def rows(split, seed, numbers):
    return split_of(task, split, seed=seed).batch(np.array(numbers))['targets_BT']

  together = rows('train', 3, [0, 5, 2**20 - 1])
  np.testing.assert_array_equal(together[1:2], rows('train', 3, [5]))
  assert len({row.tobytes() for row in together}) == 3
  assert (together != rows('train', 4, [0, 5, 2**20 - 1])).any(axis=1).all()
  for split in ('validation', 'test'):
    np.testing.assert_array_equal(rows(split, 3, [0, 1]), rows(split, 4, [0, 1]))
    assert len(split_of(task, split)) == 1024
  splits = [rows(split, 0, range(200)) for split in ('train', 'validation', 'test')]
  assert len({row.tobytes() for split in splits for row in split}) == 600


def test_the_checksum_depends_on_the_task_not_on_the_seed():
  checksums = [split_of(task, 'validation', seed=seed).checksum() for task in TASKS for seed in (0, 1)]
  assert checksums[0] == checksums[1] != checksums[2] == checksums[3]


@pytest.mark.parametrize('task', TASKS)
def test_the_minimum_length_is_reported_and_sufficient(task):
  with pytest.raises(ConfigError, match=f'is too short for data.task={task}: it must be at least {MIN_LENGTHS[task]}$'):
    split_of(task, sequence_length=MIN_LENGTHS[task] - 1)
  assert split_of(task, sequence_length=MIN_LENGTHS[task])[0]['weights_T'].any()
