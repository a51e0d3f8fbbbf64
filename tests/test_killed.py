"""A short version of tests/kill_many_times.py."""

import pytest
from kill_many_times import kill_many_times


@pytest.mark.slow
def test_killed_runs_resume_to_the_bit(tmp_path):
  assert sum(moment != 'compared' for moment in kill_many_times(6, 0, tmp_path)) == 6
