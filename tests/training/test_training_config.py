import dataclasses
import json
import math
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config import ModelConfig
from training.config import (
  Config,
  ConfigError,
  DataConfig,
  InspectConfig,
  MeshConfig,
  OptimizerConfig,
  RunConfig,
  known_paths,
)
from training.config_sections import TaskName
from training.known_names import nearest_name

REFUSED = [
  ({'data.task': 'kvj'}, "data.task='kvj': must be one of kjv, files, copy, associative_recall"),
  ({'data.sequence_length': 0}, 'data.sequence_length=0: must be at least 1'),
  ({'data.sequence_length': 64.0}, 'data.sequence_length=64.0: must be int, not float'),
  ({'data.seed': -1}, 'data.seed=-1: must be at least 0'),
  ({'data.seed': True}, 'data.seed=True: must be int, not bool'),
  ({'data.seed': 2**32}, 'data.seed=4294967296: must be below 4294967296'),
  ({'data.paths': None, 'data.task': 'files'}, 'data.paths=None: must be str, not NoneType'),
  ({'data.task': 'files'}, "data.task=files needs data.paths, as in --config.data.paths='books/*.txt'"),
  ({'data.paths': 'a.txt'}, 'data.paths is used only with data.task=files, not kjv'),
  ({'data.task': 'copy', 'data.paths': 'a.txt'}, 'data.paths is used only with data.task=files, not copy'),
  (
    {'data.task': 'associative_recall', 'data.tokenizer': 't.json'},
    'data.tokenizer has no effect with data.task=associative_recall, which generates its tokens',
  ),
  (
    {'data.mask_documents': True},
    'data.mask_documents=True needs data.end_token, which marks where a document ends',
  ),
  ({'optimizer.name': 'adam'}, "optimizer.name='adam': must be one of adamw, sgd, lion, muon"),
  ({'optimizer.schedule': 'cos'}, "optimizer.schedule='cos': must be one of cosine, linear, constant, wsd"),
  ({'optimizer.learning_rate': 0}, 'optimizer.learning_rate=0.0: must be above 0'),
  ({'optimizer.learning_rate': -1e-3}, 'optimizer.learning_rate=-0.001: must be above 0'),
  ({'optimizer.learning_rate': math.nan}, 'optimizer.learning_rate=nan: must be a finite number'),
  ({'optimizer.learning_rate': math.inf}, 'optimizer.learning_rate=inf: must be a finite number'),
  ({'optimizer.learning_rate': '1e-3'}, "optimizer.learning_rate='1e-3': must be float, not str"),
  ({'optimizer.learning_rate': True}, 'optimizer.learning_rate=True: must be float, not bool'),
  ({'optimizer.epsilon': 0.0}, 'optimizer.epsilon=0.0: must be above 0'),
  ({'optimizer.warmup_steps': -1}, 'optimizer.warmup_steps=-1: must be at least 0'),
  ({'optimizer.weight_decay': -0.1}, 'optimizer.weight_decay=-0.1: must be at least 0'),
  ({'optimizer.weight_decay': -math.inf}, 'optimizer.weight_decay=-inf: must be a finite number'),
  ({'optimizer.clip': -1.0}, 'optimizer.clip=-1.0: must be at least 0'),
  ({'optimizer.final_fraction': -0.1}, 'optimizer.final_fraction=-0.1: must be at least 0'),
  (
    {'optimizer.decay_fraction': 0.0, 'optimizer.schedule': 'wsd'},
    'optimizer.decay_fraction=0.0: must be above 0 and at most 1',
  ),
  ({'optimizer.decay_fraction': 1.1}, 'optimizer.decay_fraction=1.1: must be above 0 and at most 1'),
  (
    {'optimizer.decay_fraction': 0.3},
    'optimizer.decay_fraction is used only with optimizer.schedule=wsd, not cosine: omit it',
  ),
  (
    {'optimizer.decay_fraction': 1e-3, 'optimizer.schedule': 'wsd'},
    'optimizer.decay_fraction=0.001 of run.steps=300 rounds to 0 steps: make it at least 0.00333, or set '
    'optimizer.schedule=constant',
  ),
  (
    {'optimizer.decay_fraction': 0.95, 'optimizer.schedule': 'wsd'},
    'optimizer.warmup_steps=20 and the 285 steps of optimizer.decay_fraction=0.95 are more than run.steps=300: make '
    'either smaller',
  ),
  ({'optimizer.z_loss': -1e-4}, 'optimizer.z_loss=-0.0001: must be at least 0'),
  ({'optimizer.ema': 1.0}, 'optimizer.ema=1.0: must be at least 0 and below 1'),
  ({'optimizer.beta1': 1.0}, 'optimizer.beta1=1.0: must be at least 0 and below 1'),
  ({'optimizer.beta1': -0.1}, 'optimizer.beta1=-0.1: must be at least 0 and below 1'),
  ({'optimizer.beta2': 1}, 'optimizer.beta2=1.0: must be at least 0 and below 1'),
  ({'run.steps': 0}, 'run.steps=0: must be at least 1'),
  ({'run.batch_size': 0}, 'run.batch_size=0: must be at least 1'),
  ({'run.init_seed': -1}, 'run.init_seed=-1: must be at least 0'),
  ({'run.init_seed': 2**32}, 'run.init_seed=4294967296: must be below 4294967296'),
  ({'run.on_nonfinite': 'raise'}, "run.on_nonfinite='raise': must be one of stop, skip"),
  ({'run.log_every': -1}, 'run.log_every=-1: must be at least 0'),
  ({'run.evaluations': 0}, 'run.evaluations=0: must be at least 1'),
  ({'run.evaluation_batches': 0}, 'run.evaluation_batches=0: must be at least 1'),
  ({'run.checkpoint_every': -1}, 'run.checkpoint_every=-1: must be at least 0'),
  ({'run.keep_checkpoints': 0}, 'run.keep_checkpoints=0: must be at least 1'),
  ({'inspect.level': 'all'}, "inspect.level='all': must be one of off, norms, full"),
  ({'mesh.data': 0}, 'mesh.data=0: must be at least 1, or -1 for all remaining devices'),
  ({'mesh.fsdp': 0}, 'mesh.fsdp=0: must be at least 1'),
  *(
    (
      {'model.causal': False, 'data.task': task, 'data.paths': 'a.txt' if task == 'files' else ''},
      f'model.causal=False lets every position attend to the token it predicts, and data.task={task} is next-token '
      'prediction: set model.causal=True (model.apply alone also accepts models without a causal mask)',
    )
    for task in typing.get_args(TaskName)
  ),
  ({'model.num_layers': 0}, 'model.num_layers=0: must be at least 1'),
  (
    {'model.position': 'learned', 'model.num_positions': 32},
    'data.sequence_length=64 is longer than the learned position table: '
    'set model.num_positions=64, or shorten the sequence to 32',
  ),
  (
    {'run.steps': 20},
    'optimizer.warmup_steps=20 leaves no step for the cosine schedule: make it smaller than run.steps=20',
  ),
  (
    {'run.steps': 5, 'optimizer.schedule': 'linear', 'optimizer.warmup_steps': 7},
    'optimizer.warmup_steps=7 leaves no step for the linear schedule: make it smaller than run.steps=5',
  ),
]


@pytest.mark.parametrize(('changes', 'message'), REFUSED)
def test_invalid_configs_are_refused_in_one_line(changes, message):
  with pytest.raises(ConfigError) as error:
    Config.from_flat(changes)
  assert str(error.value) == message
  with pytest.raises(ConfigError) as error:
    Config().replace(changes)
  assert str(error.value) == message


@pytest.mark.parametrize(
  'changes',
  [
    {'run.steps': 21},
    {'run.steps': 1, 'optimizer.warmup_steps': 0},
    {'run.steps': 5, 'optimizer.schedule': 'constant', 'optimizer.warmup_steps': 7},
    {'run.steps': 5, 'optimizer.schedule': 'wsd', 'optimizer.decay_fraction': 0.4, 'optimizer.warmup_steps': 3},
    {'run.steps': 1, 'optimizer.schedule': 'wsd', 'optimizer.decay_fraction': 1.0, 'optimizer.warmup_steps': 0},
    {'model.position': 'learned', 'data.sequence_length': 64},
    {'data.sequence_length': 1000},
    {'data.task': 'files', 'data.paths': 'a.txt', 'data.tokenizer': 't.json'},
    {'optimizer.beta1': 0.0, 'optimizer.beta2': 0.0, 'optimizer.clip': 0.0, 'optimizer.weight_decay': 0.0},
    {'run.init_seed': 2**32 - 1, 'data.seed': 2**32 - 1},
  ],
)
def test_values_just_inside_the_bounds_are_accepted(changes):
  flat = Config.from_flat(changes).to_flat()
  assert {path: flat[path] for path in changes} == changes


def test_an_integer_is_accepted_as_a_float():
  config = OptimizerConfig(learning_rate=1, weight_decay=0)
  assert [type(value) for value in (config.learning_rate, config.weight_decay)] == [float, float]
  assert config == OptimizerConfig(learning_rate=1.0, weight_decay=0.0)
  assert hash(config) == hash(OptimizerConfig(learning_rate=1.0, weight_decay=0.0))
  assert json.dumps(config.learning_rate) == '1.0'


def test_a_config_cannot_be_changed():
  for section in (Config(), ModelConfig(), DataConfig(), OptimizerConfig(), RunConfig(), InspectConfig(), MeshConfig()):
    name = dataclasses.fields(section)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
      setattr(section, name, getattr(section, name))


CHANGES = st.fixed_dictionaries(
  {},
  optional={
    'model.num_layers': st.integers(1, 48),
    'model.norm': st.sampled_from(['rms', 'layer']),
    'model.dropout': st.just(0.0) | st.floats(1e-37, 0.9),
    'model.use_bias': st.booleans(),
    'data.task': st.sampled_from(['kjv', 'copy', 'associative_recall']),
    'data.text_field': st.text(st.characters(exclude_categories=['Cs', 'Cc', 'Zl', 'Zp'])),
    'data.sequence_length': st.integers(1, 10**6),
    'data.seed': st.integers(0, 2**32 - 1),
    'optimizer.name': st.sampled_from(['adamw', 'sgd', 'lion', 'muon']),
    'optimizer.learning_rate': st.floats(1e-37, 1e37),
    'optimizer.warmup_steps': st.integers(0, 99),
    'optimizer.beta1': st.just(0.0) | st.floats(1e-37, 0.99999),
    'run.steps': st.integers(100, 10**9),
    'run.init_seed': st.integers(0, 2**32 - 1),
    'run.on_nonfinite': st.sampled_from(['stop', 'skip']),
    'inspect.level': st.sampled_from(['off', 'norms']),
  },
)


@given(CHANGES, CHANGES)
def test_flat_dicts_round_trip(changes, more):
  config = Config.from_flat(changes)
  flat = config.to_flat()
  for path, value in flat.items():
    section, field = path.split('.')
    assert getattr(getattr(config, section), field) is value
    assert value == changes.get(path, getattr(getattr(Config(), section), field))
  assert set(changes) <= set(flat) == set(known_paths())
  assert Config.from_flat(flat) == config == Config().replace(changes) == config.replace({})
  assert Config.from_flat(json.loads(json.dumps(flat))) == config
  assert config.replace(more) == Config.from_flat(changes | more)
  assert config.to_flat() == flat


def test_the_paths_are_those_of_the_sections():
  sections = {'model': ModelConfig, 'data': DataConfig, 'optimizer': OptimizerConfig, 'run': RunConfig}
  sections |= {'inspect': InspectConfig, 'mesh': MeshConfig}
  fields = {name: section.__dataclass_fields__ for name, section in sections.items()}
  expected = [f'{name}.{field}' for name, own in fields.items() for field in own if own[field].init]
  assert list(known_paths()) == expected
  assert list(Config().to_flat()) == expected


@pytest.mark.parametrize(
  ('name', 'hint'),
  [
    ('model.num_layer', "did you mean 'model.num_layers'?"),
    ('modl.connection', "did you mean 'model.connection'?"),
    ('batch_size', "did you mean 'run.batch_size'?"),
    ('clip', "did you mean 'optimizer.clip'?"),  # only its last part
    ('model', "did you mean 'model."),
  ],
)
def test_an_unknown_key_gets_the_nearest_name(name, hint):
  for make in (Config.from_flat, Config().replace):
    with pytest.raises(ConfigError) as error:
      make({'run.steps': 100, name: 1})
    assert str(error.value).startswith(f'unknown config key {name!r}: {hint}')


def test_a_name_like_no_known_one_gets_the_list():
  assert nearest_name('qqq', ['relu', 'post']) == ': there are post, relu'
  assert nearest_name('qqq', map(str, range(100, 130))) == ''  # too many to list
  assert nearest_name('qqq', []) == ''
  with pytest.raises(ConfigError, match=r"^unknown config key 'qqq'$"):
    Config().replace({'qqq': 1})


def evaluated(run: RunConfig) -> list[int]:
  return [step for step in range(run.steps + 2) if run.is_evaluated(step)]


@given(st.integers(1, 3000), st.integers(1, 100))
def test_evaluations_are_at_equal_intervals_and_end_with_the_last_step(steps, evaluations):
  chosen = evaluated(RunConfig(steps=steps, evaluations=evaluations))
  gaps = {after - before for before, after in zip([0, *chosen], chosen, strict=False)}
  assert len(chosen) == min(steps, evaluations)
  assert chosen[-1] == steps
  assert min(gaps) >= 1
  assert max(gaps) - min(gaps) <= 1


def test_twenty_evaluations_of_three_hundred_steps():
  assert evaluated(RunConfig()) == list(range(15, 301, 15))
  assert evaluated(RunConfig(steps=7, evaluations=3)) == [3, 5, 7]


@pytest.mark.parametrize(
  ('steps', 'log_interval', 'checkpoint_interval'),
  [(1, 1, 1), (3, 1, 1), (5, 1, 2), (10, 1, 3), (59, 1, 15), (60, 2, 15), (300, 10, 75), (301, 10, 76)],
)
def test_intervals_follow_the_number_of_steps(steps, log_interval, checkpoint_interval):
  run = RunConfig(steps=steps)
  assert (run.log_interval, run.checkpoint_interval) == (log_interval, checkpoint_interval)
  given_ones = RunConfig(steps=steps, log_every=7, checkpoint_every=11)
  assert (given_ones.log_interval, given_ones.checkpoint_interval) == (7, 11)
