"""The files of a run are data: reading them executes no code, and no name in them leads out of the work directory."""

import ast
import sys
from pathlib import Path

import made_result
import made_run
import pytest

from lab.analysis import results
from lab.core import plan
from lab.core.experiment import Experiment
from training.config import Config, ConfigError
from training.data.loading import load_data
from training.run_files.result import read_result

PROJECT = Path(__file__).parent.parent
SOURCES = sorted(
  [
    *PROJECT.glob('*.py'),
    *(p for name in ('model', 'training', 'lab', 'experiments', 'configs') for p in PROJECT.glob(f'{name}/**/*.py')),
  ]
)
UNSAFE = {
  'pickle',
  'marshal',
  'shelve',
  'dill',
  'cloudpickle',
  'joblib',
  'eval',
  'exec',
  'compile',
  'read_pickle',
}
HOSTILE = "__import__('os').system('touch hacked')"


def names_in(tree: ast.AST) -> set[str]:
  """The modules that a file imports and the functions that it calls."""
  found: set[str] = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      found |= {alias.name.partition('.')[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      found.add((node.module or '').partition('.')[0])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
      found.add(node.func.id)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
      found |= {node.func.attr} - {'compile', 'eval'}  # re.compile, jax's compile
  return found


def test_no_module_uses_an_unsafe_format():
  assert len(SOURCES) > 40
  assert {'pickle', 'eval'} <= names_in(ast.parse('from pickle import load\neval(text)'))
  for path in SOURCES:
    assert not names_in(ast.parse(path.read_text('utf8'))) & UNSAFE, path
    assert 'allow_pickle' not in path.read_text('utf8'), path


events: list[str] | None = None


def watch(event: str, arguments: tuple) -> None:
  if events is not None and event in ('pickle.find_class', 'marshal.loads', 'os.system', 'subprocess.Popen'):
    events.append(event)


def test_reading_a_run_executes_no_code(tmp_path, monkeypatch):
  """Python reports unpickling to audit hooks, which cannot be removed; `watch` records events only in this test."""
  global events
  monkeypatch.chdir(tmp_path)
  config = Config().replace({
    'data.task': 'copy', 'data.sequence_length': 8, 'model.num_layers': 1, 'model.d_model': 8, 'model.num_heads': 2,
    'run.steps': 40, 'run.batch_size': 4,
  })  # fmt: skip
  data = load_data(config)
  run = made_run.make_run(tmp_path / 'runs' / 'trial' / HOSTILE.replace('/', '|') / 'seed_0', config, data)
  made_result.finish(run, experiment='trial', variant=HOSTILE, device=HOSTILE)
  made_run.start(run, config, data)  # once, so that all modules are imported
  sys.addaudithook(watch)
  events = []
  try:
    made_run.start(run, config, data)
    frame = results.load(tmp_path / 'runs')
    results.load_metrics(run)
    assert read_result(run)['device'] == HOSTILE
    import pickle

    assert events == []
    pickle.loads(pickle.dumps(Path('a')))
    assert events != []
  finally:
    events = None
  assert list(frame['variant']) == [HOSTILE]
  assert [path.name for path in tmp_path.iterdir()] == ['runs']


def test_a_value_in_a_config_is_not_evaluated(tmp_path):
  with pytest.raises(ConfigError, match='must be one of'):
    Config.from_flat({'model.norm': HOSTILE})
  assert not (tmp_path / 'hacked').exists()


@pytest.mark.parametrize(
  'name', ['../up', 'a/../../b', '/etc', '..', '.', '', 'a\nb', '~', '-rf', 'a\\b', 'a b', '$HOME', 'x' * 201]
)
def test_no_name_leads_out_of_the_work_directory(name, tmp_path):
  for experiment in (
    Experiment(question='?', variants={'a': {}, name: {'model.norm': 'layer'}}, name='trial', seeds=(0,)),
    Experiment(question='?', variants={'a': {}}, name=name, seeds=(0,)),
  ):
    with pytest.raises(ConfigError, match='is not a valid folder name'):
      plan.plan_runs(experiment, Config(), {}, tmp_path)
