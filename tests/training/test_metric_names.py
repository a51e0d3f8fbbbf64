import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.metric_names import MetricName

WORD = st.from_regex('[a-z][a-z0-9_]*', fullmatch=True).filter(lambda word: not word.startswith('block_'))
PATHS = st.lists(WORD, min_size=1, max_size=3).map('/'.join)
LAYERS = st.none() | st.integers(0, 10_000)
STREAM = st.sampled_from(['stream_gradient', 'stream_gradient_by_position'])
PARTS = st.sampled_from(['total', 'skip', 'branch', 'cosine', 'gain'])
NAMES = st.one_of(
  st.builds(MetricName, STREAM, LAYERS, st.sampled_from(['attention', 'feed_forward', 'output']), PARTS),
  st.builds(MetricName, WORD.filter(lambda word: not word.startswith('stream_gradient')), LAYERS, PATHS | st.just('')),
)


@given(NAMES)
def test_a_name_is_parsed_into_the_parts_it_was_formed_from(name):
  assert MetricName.parse(str(name)) == name


@given(st.lists(WORD | st.integers(0, 200).map(lambda layer: f'block_{layer}'), min_size=1).map('/'.join))
def test_forming_a_parsed_name_gives_the_same_text(text):
  assert str(MetricName.parse(text)) == text


@pytest.mark.parametrize(
  ('text', 'name'),
  [
    ('learning_rate', MetricName('learning_rate')),
    ('train/loss', MetricName('train', site='loss')),
    ('grad_norm/global', MetricName('grad_norm', site='global')),
    ('grad_norm/embedding/token', MetricName('grad_norm', site='embedding/token')),
    ('grad_norm/block_03/attention/query', MetricName('grad_norm', 3, 'attention/query')),
    ('grad_norm/block_103/attention_norm/gain', MetricName('grad_norm', 103, 'attention_norm/gain')),
    ('attention_entropy/block_00/head_11', MetricName('attention_entropy', 0, 'head_11')),
    ('silent_units/block_07', MetricName('silent_units', 7)),
    ('stream_rms/block_07/feed_forward', MetricName('stream_rms', 7, 'feed_forward')),
    ('stream_gradient/block_07/feed_forward/skip', MetricName('stream_gradient', 7, 'feed_forward', 'skip')),
    ('stream_gradient/output/total', MetricName('stream_gradient', site='output', part='total')),
  ],
)
def test_names_of_each_kind(text, name):
  assert MetricName.parse(text) == name
  assert str(name) == text


def test_positions_in_the_stack():
  assert MetricName('stream_rms', 3, 'attention').stack_position() == 3
  assert MetricName('stream_gradient', 3, 'feed_forward', 'skip').stack_position(12) == 3.5
  output = MetricName('stream_gradient', site='output', part='total')
  assert (output.stack_position(12), output.stack_position()) == (12, None)
  for name in ('grad_norm/block_03/attention/query', 'silent_units/block_03', 'grad_norm/global', 'train/loss'):
    assert MetricName.parse(name).stack_position(12) is None
