"""Tables of gradients for the terminal."""

import io
import math

import fake_gradients
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lab.inspect import gradient_table
from lab.inspect.gradient_table import depth_exponent, format_number, text_bar


def printed(table, width: int = 100) -> str:
  console = Console(width=width, file=io.StringIO())
  console.print(table)
  return console.file.getvalue()


@pytest.mark.parametrize(
  ('value', 'half', 'text'),
  [
    (0.12345, None, '0.123'),
    (0, None, '0'),
    (1.5, 0.034, '1.5 ±0.03'),
    (2e-5, None, '2.0e-05'),
    (math.nan, None, 'nan'),
    (3, math.nan, '3'),
  ],
)
def test_numbers_have_three_digits(value, half, text):
  assert format_number(value, half) == text


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_a_longer_bar_is_a_larger_number(a, b, c):
  low, middle, high = sorted([a, b, c])
  lengths = [len(text_bar(value, low, high, 10)) for value in (low, middle, high)]
  assert lengths == sorted(lengths)
  assert lengths[-1] == 10


def test_zero_and_non_finite_values_have_no_bar():
  assert [text_bar(value, 1, 100, 8) for value in (0, math.nan, math.inf)] == [''] * 3


def test_depth_exponent_of_a_power_law():
  """Norms proportional to depth^-1/2, with a different factor for each batch: the slopes are equal."""
  factors = np.array([1.0, 2.0, 5.0])
  measured = [fake_gradients.measured(layers, last=factors * layers**-0.5) for layers in (4, 8, 16)]
  slope, half = depth_exponent(measured)
  assert slope == pytest.approx(-0.5)
  assert half == pytest.approx(0, abs=1e-9)
  measured[-1].samples['grad_norm/feed_forward/down'][0, -1] *= 2
  slope, half = depth_exponent(measured)
  assert slope > -0.5
  assert half > 0.1


def test_table_of_one_model():
  text = printed(gradient_table.by_sublayer([fake_gradients.measured(3)]))
  rows = [line.split() for line in text.splitlines()]
  assert [row[0] for row in rows if len(row) > 1 and row[1] == 'attention'] == ['0', '1', '2']
  assert sum('feed_forward' in row for row in rows) == 3
  assert 'norms over tokens' in ' '.join(text.split())
  assert '95% interval over 3 batches' in ' '.join(text.split())


def test_the_cosine_of_a_path_without_a_gradient_is_explained():
  one = fake_gradients.measured(2)
  explained = 'cosine: between skip path and branch, 0 where one of them is 0'
  assert explained not in ' '.join(printed(gradient_table.by_sublayer([one])).split())
  one.samples['skip'][:, 1, 0] = 0
  assert explained in ' '.join(printed(gradient_table.by_sublayer([one])).split())


def test_table_of_two_models():
  measured = [fake_gradients.measured(2, name='baseline'), fake_gradients.measured(3, name='post_norm')]
  text = printed(gradient_table.by_sublayer(measured))
  assert '…' not in text
  assert 'baseline' in text
  assert 'post_norm' in text


@pytest.mark.parametrize('width', [100, 80, 60, 50])
def test_no_number_is_truncated_in_a_narrow_terminal(width):
  """Bars are shortened first, then the two paths are omitted."""
  one, other = fake_gradients.measured(2, name='baseline'), fake_gradients.measured(3, name='post_norm')
  for table in (
    gradient_table.by_sublayer([one], width),
    gradient_table.by_sublayer([one, other], width),
    gradient_table.by_depth([one, other], width),
  ):
    text = printed(table, width)
    assert '…' not in text
    assert max(map(len, text.splitlines())) <= width
  text = printed(gradient_table.by_sublayer([one], width), width)
  for value in (one.mean('total')[1, 0], one.mean('gain')[1, 0]):
    assert f' {format_number(value)}' in text
  assert ('skip  ' in text) == (width > 60)
  assert ('█' in text) == (width > 60)


def test_table_of_depths():
  text = printed(gradient_table.by_depth([fake_gradients.measured(layers) for layers in (4, 8)]))
  assert 'depth^(' in text
  assert 'Frobenius norm of the gradient' in ' '.join(text.split())
  assert 'no exponent: it needs several depths' in printed(gradient_table.by_depth([fake_gradients.measured(4)]))
