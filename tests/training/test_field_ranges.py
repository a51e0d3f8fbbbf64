"""Every field of a config with extreme values: refused in one line, or usable in a program."""

import math
import typing

import numpy as np
import pytest

from model.config import ConfigError
from training.config import Config, known_paths, sections

KINDS = {
  f'{name}.{field}': kind
  for name, section in sections().items()
  for field, kind in typing.get_type_hints(section).items()
}
FIELDS = {kind: [path for path in known_paths() if KINDS[path] is kind] for kind in (int, float, bool, str)}
NAMES = [path for path in known_paths() if typing.get_origin(KINDS[path]) is typing.Literal]
OF_NO_TYPE = [None, [], {}, (), b'x', object(), float]


def refused(path: str, value: object) -> str:
  """The error message for a value."""
  with pytest.raises(ConfigError) as error:
    Config().replace({path: value})
  message = str(error.value)
  assert message.isprintable()
  assert len(message) < 400
  return message


@pytest.mark.parametrize('path', known_paths())
def test_a_value_of_another_type_is_refused(path):
  for value in OF_NO_TYPE:
    assert path in refused(path, value)


@pytest.mark.parametrize('path', FIELDS[int])
def test_integers_must_fit_a_device_integer(path):
  bound = 2**32 if path.endswith('seed') else 2**31
  for value in (bound, 3_000_000_000_000, 10**30, 10**5000, True, 1.0, '1', math.nan, np.int64(1)):
    assert path in refused(path, value)
  for value in (-(10**30), -(2**31), -2):
    assert path in refused(path, value)


@pytest.mark.parametrize('path', FIELDS[float])
def test_floats_must_be_normal_float32_numbers(path):
  outside = [math.nan, math.inf, -math.inf, 1e308, -1e308, 3.5e38, 10**400, 1e-310, 5e-324, 1e-39, True, '1', 1j]
  for value in outside:
    assert path in refused(path, value)


@pytest.mark.parametrize('path', FIELDS[bool])
def test_booleans_must_be_booleans(path):
  for value in ('x', 'true', 0, 1, 2, 1.0, np.bool_(True)):
    assert path in refused(path, value)


@pytest.mark.parametrize('path', FIELDS[str])
def test_texts_must_not_have_control_characters(path):
  for value in ('a\nb', 'a\rb', '\0', 'a\tb', '\x1b[31m', '\x7f', '\u2028', 1, True):
    assert path in refused(path, value)


@pytest.mark.parametrize('path', NAMES)
def test_names_must_be_in_the_list(path):
  for value in ('x', '', 'PRE', 1, True, 'a\nb', 'x' * 10_000):
    assert 'must be one of' in refused(path, value)


@pytest.mark.parametrize('path', ['optimizer.beta1', 'optimizer.beta2', 'optimizer.ema', 'model.dropout'])
def test_values_that_round_to_1_are_not_below_1(path):
  assert 'below 1' in refused(path, 1 - 2.0**-26)
  assert np.float32(Config().replace({path: 1 - 2.0**-24}).to_flat()[path]) < 1


@pytest.mark.parametrize('width', [2**31 - 1, 2**31 - 2, 2_147_117_569])  # a prime, and the square of one
def test_the_nearest_number_of_heads_is_found_quickly(width):
  message = refused('model.d_model', width) if width % 4 else ''
  assert not message or 'does, or set model.head_dim' in message


def test_billions_of_steps_are_handled_quickly():
  run = Config().replace({'run.steps': 2**31 - 1, 'run.evaluations': 2**31 - 1, 'run.checkpoint_every': 1}).run
  assert run.is_evaluated(2**31 - 1)
  assert run.is_evaluated(7)
  assert run.is_saved(2**31 - 2)
  assert not run.is_saved(2**31 - 1)
  assert not run.is_evaluated(2**31)
