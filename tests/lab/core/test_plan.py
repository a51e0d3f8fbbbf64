import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core import names, plan
from lab.core.experiment import Experiment
from training.config import Config, ConfigError
from training.run_files.run_directory import prepare

EXPERIMENT = Experiment(
  name='trial',
  question='?',
  variants={'baseline': {}, 'post': {'model.connection': 'post'}, 'fast': {'optimizer.learning_rate': 1e-2}},
  base={'model.num_layers': 3, 'model.d_model': 32},
  seeds=(0, 7),
)


def test_runs_are_ordered_by_seed_so_that_pairs_finish_together(tmp_path):
  runs = plan.plan_runs(EXPERIMENT, Config(), {}, tmp_path)
  assert [(run.seed, run.variant) for run in runs] == [
    (seed, variant) for seed in (0, 7) for variant in ('baseline', 'post', 'fast')
  ]
  assert runs[4].directory == tmp_path / 'trial' / 'post' / 'seed_7'
  assert (runs[4].config.run.init_seed, runs[4].config.data.seed) == (7, 7)


def test_a_later_source_overrides_an_earlier_one(tmp_path):
  scale = Config().replace({'model.num_layers': 2, 'model.num_heads': 2, 'optimizer.learning_rate': 1e-4})
  flags = {'model.d_model': 48, 'optimizer.learning_rate': 1e-3, 'data.seed': 5}
  baseline, _, fast = plan.plan_runs(dataclasses.replace(EXPERIMENT, seeds=(1,)), scale, flags, tmp_path)
  assert baseline.config.model.num_heads == 2  # from the scale file
  assert baseline.config.model.num_layers == 3  # the base overrides the scale file
  assert baseline.config.model.d_model == 48  # a flag overrides the base
  assert baseline.config.optimizer.learning_rate == 1e-3
  assert fast.config.optimizer.learning_rate == 1e-2  # the variant overrides a flag
  assert (baseline.config.run.init_seed, baseline.config.data.seed) == (1, 5)  # a flag may set one of the two seeds


def test_variants_with_the_same_config_are_rejected(tmp_path):
  with pytest.raises(ConfigError, match='trial/fast/seed_0 has the same config as trial/baseline/seed_0'):
    plan.plan_runs(EXPERIMENT, Config(), {'optimizer.learning_rate': 1e-2}, tmp_path)


def test_seeds_with_the_same_config_are_rejected(tmp_path):
  with pytest.raises(ConfigError, match='trial/baseline/seed_7 has the same config as trial/baseline/seed_0'):
    plan.plan_runs(EXPERIMENT, Config(), {'run.init_seed': 3, 'data.seed': 3}, tmp_path)
  assert len(plan.plan_runs(EXPERIMENT, Config(), {'run.init_seed': 3}, tmp_path)) == 6  # the data order still differs


def test_the_message_for_an_invalid_config_names_the_variant(tmp_path):
  with pytest.raises(ConfigError, match=r'^trial/baseline: model.num_heads=5 does not divide'):
    plan.plan_runs(EXPERIMENT, Config(), {'model.num_heads': 5}, tmp_path)


def test_select():
  chosen = plan.select(EXPERIMENT, ['fast', 'baseline'], [3, 3, 1])
  assert list(chosen.variants) == ['baseline', 'fast']
  assert chosen.seeds == (3, 1)
  assert plan.select(EXPERIMENT, [], []) == EXPERIMENT
  with pytest.raises(ConfigError, match="unknown variant of trial 'pots': did you mean 'post'"):
    plan.select(EXPERIMENT, ['pots'], [])


def test_a_custom_run_is_named_after_its_changes():
  changes = {'model.connection': 'post', 'optimizer.learning_rate': 3e-3}
  experiment = plan.custom_experiment(changes, '')
  assert experiment.variants == {'connection=post+learning_rate=0.003': changes}
  assert experiment.seeds == (0,)
  assert list(plan.custom_experiment(changes, 'mine').variants) == ['mine']
  assert list(plan.custom_experiment({}, '').variants) == ['default']


def test_a_sweep_is_a_grid_of_typed_values():
  experiment = plan.sweep_experiment('model.connection=pre,post; optimizer.learning_rate=1e-3,4e-3', {}, '')
  assert list(experiment.variants) == [
    'connection=pre+learning_rate=0.001', 'connection=pre+learning_rate=0.004',
    'connection=post+learning_rate=0.001', 'connection=post+learning_rate=0.004',
  ]  # fmt: skip
  assert experiment.variants['connection=post+learning_rate=0.004'] == {
    'model.connection': 'post',
    'optimizer.learning_rate': 0.004,
  }
  assert plan.sweep_experiment('model.qk_norm=true,false;model.num_layers=2', {}, '').variants == {
    'qk_norm=True': {'model.qk_norm': True, 'model.num_layers': 2},
    'qk_norm=False': {'model.qk_norm': False, 'model.num_layers': 2},
  }


@pytest.mark.parametrize(
  ('sweep', 'message'),
  [
    ('', '--sweep is empty'),
    ('model.connection', 'cannot parse .model.connection.'),
    ('model.connection=', 'cannot parse'),
    ('model.conection=pre', "unknown config key 'model.conection': did you mean 'model.connection'"),
    ('connection=pre', "did you mean 'model.connection'"),
    ('model.num_layers=2,x', 'model.num_layers=x: must be a whole number'),
    ('optimizer.learning_rate=fast', 'optimizer.learning_rate=fast: must be a number'),
    ('model.qk_norm=maybe', 'must be true or false'),
    ('model.num_layers=2,2', 'twice'),
    ('model.d_model=32,64', 'is set both by --sweep and by another flag'),
  ],
)
def test_an_invalid_sweep_is_rejected_in_one_line(sweep, message):
  with pytest.raises(ConfigError, match=message) as error:
    plan.sweep_experiment(sweep, {'model.d_model': 16}, '')
  assert '\n' not in str(error.value)


@given(st.text(max_size=12))
def test_a_valid_name_stays_inside_the_work_directory(name):
  try:
    names.check_variant_name(name)
    names.check_experiment_name(name)
  except ConfigError:
    return
  inside = (Path('/runs') / name / 'seed_0').resolve()
  assert inside.parent.parent == Path('/runs')
  assert inside.parent.name == name


def test_a_sweep_cannot_use_the_name_of_an_experiment():
  with pytest.raises(ConfigError, match='--name=block is the name of an experiment'):
    plan.sweep_experiment('model.num_layers=1,2', {}, 'block')


def test_checking_directories_writes_nothing(tmp_path):
  runs = plan.plan_runs(EXPERIMENT, Config(), {}, tmp_path)
  plan.check_directories(runs)
  assert not list(tmp_path.iterdir())
  prepare(runs[3].directory, runs[3].config.replace({'run.batch_size': 77}))
  with pytest.raises(ConfigError, match=r'seed_7 holds another run \(run.batch_size is 77 there, 16 here\)'):
    plan.check_directories(runs)
