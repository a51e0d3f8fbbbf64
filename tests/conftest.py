"""What all tests share: a cache folder of their own."""

import pytest


@pytest.fixture(scope='session', autouse=True)
def private_cache(tmp_path_factory):
  """Keeps the user's cache out of the tests, and the tests out of the user's cache."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('BLOCKLAB_CACHE', str(tmp_path_factory.mktemp('cache')))
    yield
