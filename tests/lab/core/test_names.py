"""Names generated from changes, and names that are rejected."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core import names, plan
from lab.core.experiment import Experiment
from training.config import Config, ConfigError

PATHS = {'data.task': 'files', 'data.paths': '/data/books/*.txt'}


def test_invalid_characters_become_dashes_and_a_checksum_is_added():
  assert names.name_from_changes(PATHS) == 'task=files+paths=books-.txt-' + names.name_from_changes(PATHS)[-8:]
  source = {'run.init_from': 'runs/block/baseline/seed_0'}
  assert names.name_from_changes(source).startswith('init_from=baseline-seed_0-')
  other = {'run.init_from': 'runs/heads/baseline/seed_0'}
  assert names.name_from_changes(other).startswith('init_from=baseline-seed_0-')
  assert names.name_from_changes(other) != names.name_from_changes(source)


def test_a_custom_run_that_only_changes_a_path_gets_a_valid_name(tmp_path):
  experiment = plan.custom_experiment(PATHS, '')
  (run,) = plan.plan_runs(experiment, Config(), {}, tmp_path)
  assert run.directory.parent.parent == tmp_path / 'custom'
  assert run.config.data.paths == PATHS['data.paths']
  sweep = plan.sweep_experiment('run.init_from=runs/a/b/seed_0,runs/a/b/seed_1', {}, '')
  assert len(sweep.variants) == 2


def test_rates_that_differ_in_the_seventh_digit_get_different_names():
  near = [names.name_from_changes({'optimizer.learning_rate': rate}) for rate in (1e-3, 1.0000001e-3)]
  assert near == ['learning_rate=0.001', 'learning_rate=0.0010000001']


@given(st.dictionaries(st.sampled_from(['data.paths', 'run.init_from', 'data.text_field']), st.text(), min_size=1))
def test_every_generated_name_is_a_valid_folder_name(changes):
  names.check_variant_name(names.name_from_changes(changes))


@pytest.mark.parametrize(
  'name', ['', '.', '..', '../x', '/x', 'a/b', 'a\n', '-a', '.a', 'a b', '~', 'é', 'a' * 201, 'tuning', 'Tuning',
           'figures', 'lock', 'results.csv', 'verdicts.tex', 'yardsticks_test.json', 'seed_3'],
)  # fmt: skip
def test_invalid_and_reserved_variant_names_are_rejected(name, tmp_path):
  with pytest.raises(ConfigError, match='the name'):
    names.check_variant_name(name)
  experiment = Experiment(name='trial', question='?', variants={'baseline': {}, name: {'model.num_layers': 2}})
  with pytest.raises(ConfigError, match='the name'):
    plan.plan_runs(experiment, Config(), {}, tmp_path)


@pytest.mark.parametrize(
  'name', ['', '..', '/etc', 'a/b', 'reproduce', 'compare', 'gradients', 'tuning', 'full', 'seed_0']
)
def test_invalid_and_reserved_experiment_names_are_rejected(name, tmp_path):
  experiment = Experiment(question='?', variants={'baseline': {}})
  with pytest.raises(ConfigError, match='the name'):
    plan.plan_runs(dataclasses.replace(experiment, name=name), Config(), {}, tmp_path)
