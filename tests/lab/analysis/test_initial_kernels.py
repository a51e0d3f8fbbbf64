import pytest

from lab.analysis.initial_kernels import describe_initialisation, kernel_scheme
from model import ModelConfig
from training.config import Config


def flat(**changes):
  return Config(model=ModelConfig(**changes)).to_flat()


@pytest.mark.parametrize(
  ('changes', 'text'),
  [
    ({}, 'fan_in with depth scale'),
    ({'init': 'gpt2', 'init_depth_scale': False}, 'gpt2 without depth scale'),
    ({'connection': 'layer_scale'}, 'fan_in with depth scale'),
    ({'connection': 'deepnorm', 'init': 'xavier'}, 'xavier with DeepNorm scaling'),
    ({'connection': 'completep:base_width=32'}, 'fan_in with the scaling of completep:base_width=32'),
    ({'connection': 'skipless:shaped=false'}, 'fan_in with depth scale'),
    ({'connection': 'skipless'}, 'fan_in with orthogonal value/output/up/down kernels'),
  ],
  ids=str,
)
def test_the_words_for_an_initialisation(changes, text):
  assert describe_initialisation(flat(**changes)) == text


def test_runs_share_initial_values_only_with_the_same_scheme():
  pre = kernel_scheme(flat())
  for same in ({'connection': 'layer_scale'}, {'connection': 'skipless:shaped=false'}, {'dropout': 0.1}):
    assert kernel_scheme(flat(**same)) == pre, same
  for other in (
    {'connection': 'skipless'},
    {'connection': 'deepnorm'},
    {'connection': 'completep'},
    {'init': 'xavier'},
    {'init_depth_scale': False},
    {'num_layers': 6},
  ):
    assert kernel_scheme(flat(**other)) != pre, other
  deep, shallow = ({'num_layers': layers, 'init_depth_scale': False} for layers in (6, 12))
  assert kernel_scheme(flat(**deep)) == kernel_scheme(flat(**shallow))


def test_the_scheme_of_a_connection_whose_file_is_not_loaded():
  unloaded = flat() | {
    'model.connection': 'mine',
    'model.idea': f'mine.py sha256 {"0" * 64}',
    'model.idea_file': '/mine.py',
  }
  assert kernel_scheme(unloaded) == kernel_scheme(dict(unloaded))
  assert kernel_scheme(unloaded) != kernel_scheme(unloaded | {'model.num_layers': 6})
  assert describe_initialisation(unloaded) == 'fan_in with depth scale'
