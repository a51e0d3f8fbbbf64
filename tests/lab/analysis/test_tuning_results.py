"""tuned.csv: the choice, the round trip through the file, and the detection of damage."""

import dataclasses
import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning_points import ABOUT, RATES, points_of

from lab.analysis import tuned_learning_rates, tuning_results
from lab.analysis.tuning_results import Tuning
from lab.core import registry
from training.code_version import DIGEST
from training.config import Config, ConfigError
from training.files import Damaged


def tuning_in(folder) -> Tuning:
  losses = {'baseline': [[2.5, 2.6], [2.4, 2.3], [2.35, 2.45]], 'post': [[2.4, 2.5], [2.0, 9.0], [9.5, math.inf]]}
  return Tuning(folder / 'tuned.csv', ABOUT, tuning_results.mark_chosen(points_of(losses)))


def test_a_diverged_run_counts_in_the_mean(tmp_path):
  assert tuning_in(tmp_path).chosen == {'baseline': (2e-3, 20), 'post': (1e-3, 20)}


@given(st.lists(st.lists(st.floats(0, 12), min_size=2, max_size=2), min_size=3, max_size=3))
def test_the_lowest_mean_is_chosen(losses):
  chosen = [point for point in tuning_results.mark_chosen(points_of({'one': losses})) if point.chosen]
  means = np.array(losses).mean(1)
  assert [point.seed for point in chosen] == [100, 101]
  assert means[RATES.index(chosen[0].learning_rate)] == pytest.approx(means.min(), rel=1e-12)


def test_a_warm_up_is_chosen_together_with_the_learning_rate():
  slow = points_of({'one': [[3.0, 3.0], [2.9, 2.9], [2.8, 2.8]]})
  fast = [dataclasses.replace(point, warmup_steps=0, counted_loss=point.counted_loss - 0.05) for point in slow]
  assert Tuning(None, ABOUT, tuning_results.mark_chosen(slow + fast)).chosen == {'one': (4e-3, 0)}


def test_a_file_is_read_back_unchanged_and_pandas_reads_it(tmp_path):
  whole = tuning_in(tmp_path)
  assert tuning_results.read_tuning(tuning_results.write_tuning(whole)) == whole
  frame = pd.read_csv(whole.path, comment='#')
  assert list(frame) == [
    'variant', 'learning_rate', 'warmup_steps', 'seed', 'status', 'final_loss', 'counted_loss', 'unit', 'chosen',
  ]  # fmt: skip
  assert len(frame) == 2 * 3 * 2
  assert frame[frame['chosen']]['learning_rate'].tolist() == [2e-3, 2e-3, 1e-3, 1e-3]
  assert frame['final_loss'].isna().sum() == 3
  assert tuning_results.read_tuning(tmp_path / 'none.csv') is None


DAMAGE = {
  'empty': (r'(?s).*', '', 'it has no settings'),
  'no rows': (r'(?s)chosen\n.*', 'chosen\n', 'it has no rows'),
  'a missing column': ('counted_loss', 'loss', 'it has no counted_loss'),
  'cut within a row': (r'(?s).{30}$', '', 'too short'),
  'cut between rows': (r'[^\n]*\n$', '', 'the grid of post differs from the others'),
  'another choice': (r'(baseline,0.001,.*)False', r'\1True', 'does not have the lowest mean loss'),
  'another loss': (r'(?m)^(baseline,0.004,20,100,completed),2.35,2.35', r'\1,1.35,1.35', 'lowest mean loss'),
  'not a number': ('2.35', 'two', 'two'),
  'not a finite number': ('2.35,2.35', '2.35,nan', 'impossible row: baseline'),
  'unknown settings': ('run.steps', 'run.stepz', 'did you mean'),
  'a cut comment': (r'300\}', '300', 'Expecting'),
}


@pytest.mark.parametrize('case', DAMAGE)
def test_a_damaged_file_is_reported_in_one_line(case, tmp_path):
  pattern, replacement, message = DAMAGE[case]
  path = tuning_results.write_tuning(tuning_in(tmp_path))
  unsealed = ''.join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith('# sha256'))
  text, count = re.subn(pattern, replacement, unsealed, count=1)
  assert count == 1
  path.write_text(text)
  with pytest.raises(ConfigError, match=message) as error:
    tuning_results.read_tuning(path)
  assert str(error.value).startswith(f'{path} is damaged (')
  assert '\n' not in str(error.value)


def test_any_changed_digit_is_damage(tmp_path):
  """Also where the choice stays the same, as when the loss of a chosen point becomes lower."""
  whole = tuning_in(tmp_path)
  path = tuning_results.write_tuning(dataclasses.replace(whole, about={**whole.about, 'code': []}))
  text = path.read_text()
  for index, character in enumerate(text):
    if character.isdigit():
      path.write_text(text[:index] + str((int(character) + 1) % 10) + text[index + 1 :])
      with pytest.raises(Damaged, match=r'tuned\.csv is damaged \(.*\): --tune rebuilds it'):
        tuning_results.read_tuning(path)
  path.write_bytes(text.replace('\n', '\r\n').encode())  # as an editor may have saved it
  assert tuning_results.read_tuning(path) is not None


@pytest.mark.parametrize(
  'row',
  [
    'baseline,-0.001,20,100,completed,2.5,2.5,bits per byte,False',
    'baseline,inf,20,100,completed,2.5,2.5,bits per byte,False',
    'baseline,0.001,-20,100,completed,2.5,2.5,bits per byte,False',
    'baseline,0.001,20,-100,completed,2.5,2.5,bits per byte,False',
    'baseline,0.001,20,100,done,2.5,2.5,bits per byte,False',
    'baseline,0.001,20,100,completed,-2.5,2.5,bits per byte,False',
    'baseline,0.001,20,100,completed,inf,2.5,bits per byte,False',
    'baseline,0.001,20,100,completed,,2.5,bits per byte,False',
    'baseline,0.001,20,100,diverged,2.5,2.5,bits per byte,False',
    'baseline,0.001,20,100,completed,2.5,-2.5,bits per byte,False',
    'baseline,0.001,20,100,completed,2.5,2.5,bits per byte,no',
  ],
)
def test_an_impossible_row_is_damage(tmp_path, row):
  path = tuning_results.write_tuning(tuning_in(tmp_path))
  lines = [line for line in path.read_text().splitlines() if not line.startswith('# sha256')]
  index = next(k for k, line in enumerate(lines) if line.startswith('baseline,0.001,20,100,'))
  path.write_text('\n'.join([*lines[:index], row, *lines[index + 1 :], '']))
  with pytest.raises(Damaged, match=f'impossible row: {re.escape(row)}'):
    tuning_results.read_tuning(path)


def test_a_binary_file_is_reported_as_damaged(tmp_path):
  (tmp_path / 'tuned.csv').write_bytes(b'\x89PNG')
  with pytest.raises(Damaged, match=r'tuned\.csv is damaged \(.*decode'):
    tuning_results.read_tuning(tmp_path / 'tuned.csv')
  (tmp_path / 'tuned.csv').write_text('# settings: ' + '[' * 100_000)
  with pytest.raises(Damaged, match='nested too deeply'):
    tuning_results.read_tuning(tmp_path / 'tuned.csv')


def test_rates_tuned_with_other_code_have_a_warning(tmp_path):
  whole = tuning_in(tmp_path)
  mine, other = ({'revision': None, 'digest': digest, 'modified': False} for digest in (DIGEST, '7' * 64))
  for codes, expected in (([mine], False), ([mine, other], True)):
    description = tuning_results.describe_tuning(
      dataclasses.replace(whole, about={**whole.about, 'code': codes}), [], ['b2c2']
    )
    warning = 'the learning rates were tuned with other code than this checkout (digest 77777777)'
    assert (warning in description['warnings']) == expected


def test_a_report_warns_of_edges_and_of_runs_that_did_not_learn(tmp_path):
  description = tuning_results.describe_tuning(tuning_in(tmp_path), ['baseline', 'post'], ['b2c2'])
  assert description['warnings'] == [
    'post: its learning rate, 1e-3, is the lowest of the grid; a better one may lie beyond it'
  ]
  assert (
    '(of 1e-3, 2e-3, 4e-3) with the lowest mean validation loss over tuning seeds 100, 101' in description['sentence']
  )
  losses = {'baseline': [[3, 3], [2.9, 2.9], [2.5, 2.5]], 'post': [[20, 20], [9, 2], [9.5, 9.5]]}
  other = Tuning(tmp_path / 'tuned.csv', ABOUT, tuning_results.mark_chosen(points_of(losses)))
  assert tuning_results.describe_tuning(other, ['baseline', 'post'], ['other'])['warnings'] == [
    'the learning rates were tuned on another text',
    'baseline: its learning rate, 4e-3, is the highest of the grid; a better one may lie beyond it',
    'post: 1 of 2 tuning runs learned at its learning rate',
  ]


def test_committed_tunings_apply_to_their_experiments():
  """A committed tuning that no longer matches its experiment would be ignored with only a printed line."""
  from configs.flags import load_config

  for path in tuned_learning_rates.COMMITTED.glob('*.csv'):
    experiment = registry.find_experiment(path.stem)
    found = tuning_results.read_tuning(path)
    assert set(experiment.variants) <= set(found.chosen)
    scale = load_config(str(tuned_learning_rates.COMMITTED.parents[1] / experiment.config))
    assert tuned_learning_rates.tuning_differences(found, experiment, scale, {}) == ''
    assert tuned_learning_rates.tuning_differences(found, experiment, scale, {'run.evaluations': 1}) == '', (
      'evaluations do not affect the choice'
    )
    assert (
      tuned_learning_rates.tuning_differences(found, experiment, scale, {'run.steps': 77})
      == 'run.steps is 300 there, 77 here'
    )


def test_a_newer_config_field_counts_as_its_default(tmp_path):
  experiment = dataclasses.replace(registry.find_experiment('block'), variants=ABOUT['variants'])
  assert tuned_learning_rates.tuning_differences(tuning_in(tmp_path), experiment, Config(), {}) == ''
  there = tuned_learning_rates.tuning_differences(
    tuning_in(tmp_path), experiment, Config(), {'model.norm': 'layer', 'run.steps': 99}
  )
  assert 'run.steps is 300 there, 99 here' in there
  assert "model.norm is 'rms' there, 'layer' here" in there
  assert 'learning_rate' not in tuned_learning_rates.tuning_differences(
    tuning_in(tmp_path), experiment, Config(), {'optimizer.learning_rate': 1.0, 'data.seed': 5, 'run.steps': 99}
  )
  changed = dataclasses.replace(experiment, variants={'post': {'model.connection': 'res_post'}})
  assert 'post was tuned with other changes' in tuned_learning_rates.tuning_differences(
    tuning_in(tmp_path), changed, Config(), {}
  )
