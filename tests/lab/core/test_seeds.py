import pytest

from lab.core import seeds
from training.config import ConfigError


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('0', [0]),
    ('0-4', [0, 1, 2, 3, 4]),
    ('0-2,7', [0, 1, 2, 7]),
    ('3-3', [3]),
    ('1,0-2', [1, 0, 2]),
    (' 0 , 2', [0, 2]),
  ],
)
def test_seeds_and_ranges_of_seeds(text, expected):
  assert seeds.parse_seeds(text.split(',')) == expected


@pytest.mark.parametrize(
  'text', ['-1', 'one', '4-0', '0-', '-', '0--4', '0-1-2', '', '0,', '1.5', '0-4000000000', '\u0663']
)
def test_an_invalid_seed_is_rejected(text):
  with pytest.raises(ConfigError, match=r'^--seeds='):
    seeds.parse_seeds(text.split(','))
