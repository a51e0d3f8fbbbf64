"""Names made of what was changed, and names that are refused."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core import names, plan
from lab.core.experiment import Experiment
from training.config import Config, ConfigError

PATHS = {'data.task': 'files', 'data.paths': '/home/me/books/*.txt'}


def test_what_a_folder_cannot_be_called_becomes_a_dash_and_a_checksum():
  assert names.name_from_changes(PATHS) == 'task=files+paths=books-.txt-' + names.name_from_changes(PATHS)[-8:]
  source = {'run.init_from': 'runs/block/baseline/seed_0'}
  assert names.name_from_changes(source).startswith('init_from=baseline-seed_0-')
  other = {'run.init_from': 'runs/heads/baseline/seed_0'}
  assert names.name_from_changes(other).startswith('init_from=baseline-seed_0-')
  assert names.name_from_changes(other) != names.name_from_changes(source)


def test_a_custom_run_from_a_path_alone_has_a_name(tmp_path):
  made = plan.custom_experiment(PATHS, '')
  (run,) = plan.plan_runs(made, Config(), {}, tmp_path)
  assert run.directory.parent.parent == tmp_path / 'custom'
  assert run.config.data.paths == PATHS['data.paths']
  sweep = plan.sweep_experiment('run.init_from=runs/a/b/seed_0,runs/a/b/seed_1', {}, '')
  assert len(sweep.variants) == 2


def test_rates_that_differ_in_the_seventh_digit_have_names_that_differ():
  near = [names.name_from_changes({'optimizer.learning_rate': rate}) for rate in (1e-3, 1.0000001e-3)]
  assert near == ['learning_rate=0.001', 'learning_rate=0.0010000001']


@given(st.dictionaries(st.sampled_from(['data.paths', 'run.init_from', 'data.text_field']), st.text(), min_size=1))
def test_every_name_of_changes_is_one_of_a_folder(changes):
  names.check_variant_name(names.name_from_changes(changes))


@pytest.mark.parametrize(
  'name', ['', '.', '..', '../x', '/x', 'a/b', 'a\n', '-a', '.a', 'a b', '~', 'é', 'a' * 201, 'tuning', 'Tuning',
           'figures', 'lock', 'results.csv', 'verdicts.tex', 'yardsticks_test.json', 'seed_3'],
)  # fmt: skip
def test_a_variant_is_not_called(name, tmp_path):
  with pytest.raises(ConfigError, match='the name'):
    names.check_variant_name(name)
  experiment = Experiment(name='trial', question='?', variants={'baseline': {}, name: {'model.num_layers': 2}})
  with pytest.raises(ConfigError, match='the name'):
    plan.plan_runs(experiment, Config(), {}, tmp_path)


@pytest.mark.parametrize(
  'name', ['', '..', '/etc', 'a/b', 'reproduce', 'compare', 'gradients', 'tuning', 'full', 'seed_0']
)
def test_an_experiment_is_not_called(name, tmp_path):
  experiment = Experiment(question='?', variants={'baseline': {}})
  with pytest.raises(ConfigError, match='the name'):
    plan.plan_runs(dataclasses.replace(experiment, name=name), Config(), {}, tmp_path)
