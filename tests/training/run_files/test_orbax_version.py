import importlib.metadata

import pytest

from training.run_files.checkpoint import tensorstore_utils


@pytest.mark.parametrize('name', ['_BASE_TS_CONTEXT', '_DEFAULT_OCDBT_TS_CONTEXT'])
def test_the_private_settings_are_those_of_this_version_of_orbax(name):
  """After an upgrade of Orbax: check that tensorstore_utils.py still uses both, then change the version."""
  assert importlib.metadata.version('orbax-checkpoint') == '0.12.8'
  assert getattr(tensorstore_utils, name)['file_io_locking'] == {'mode': 'none'}
