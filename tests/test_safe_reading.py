"""The files of a run are data: reading them executes no code, and no name in them leads out of the work directory."""

import ast
import dataclasses
import hashlib
import sys
from pathlib import Path

import fake_runs
import made_result
import made_run
import pytest
from in_process import run_main

from lab.analysis import results
from lab.cli.command_line import new_console
from lab.core import plan
from lab.core.experiment import Experiment
from lab.core.find_runs import find_runs
from lab.inspect import command
from training import ideas
from training.config import Config, ConfigError
from training.data.loading import load_data
from training.run_files import trained_run
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
# Loads the experiment file that the user names in the command; a run that names one is refused, as tested below.
ALLOWED = {PROJECT / 'training' / 'ideas.py': {'exec', 'compile'}}
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
    assert names_in(ast.parse(path.read_text('utf8'))) & UNSAFE == ALLOWED.get(path, set()), path
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


IDEA = """
from pathlib import Path
Path(__file__).with_name('executed').touch()
from model import Connection, connection

@connection('evil')
class Evil(Connection):
  def read(self, state, site):
    return state
  def write(self, state, y_BTD, site):
    return state + y_BTD
"""


@pytest.fixture
def received(tmp_path, monkeypatch, own_parts):
  """The directory of a run whose config names a file that it brings along, with the right checksum."""
  monkeypatch.chdir(tmp_path)
  experiment = dataclasses.replace(fake_runs.BLOCK, seeds=(0,))
  fake_runs.write_experiment(tmp_path / 'runs' / 'block', experiment, {'baseline': 2.9, 'post_norm': 2.8}, points=2)
  run = tmp_path / 'runs' / 'block' / 'baseline' / 'seed_0'
  (run / 'evil.py').write_text(IDEA)
  recorded = f'evil.py sha256 {hashlib.sha256(IDEA.encode()).hexdigest()}'
  idea = {'model.idea': recorded, 'model.idea_file': str(run / 'evil.py'), 'model.connection': 'evil'}
  fake_runs.edit_runs(run.parents[1], 'baseline', [0], idea)
  return run


def assert_asks(message: str, run: Path, named: str) -> None:
  checksum = hashlib.sha256(IDEA.encode()).hexdigest()[:8]
  assert message.endswith(
    f'{named} uses the connection evil that evil.py (sha256 {checksum}) registers: '
    f'add --experiment={run}/evil.py to execute that file'
  )
  assert '\n' not in message
  assert not (run / 'executed').exists()


@pytest.mark.parametrize('experiments', [(), ('mine.py',)])
@pytest.mark.parametrize('flags', ['run', 'compare'])
def test_a_received_run_is_not_inspected_without_asking(received, flags, experiments):
  Path('mine.py').write_text(IDEA.replace('evil', 'good'))  # another file is no permission
  shown = 'runs/block/baseline/seed_0'
  runs = {'run': {'run': shown}, 'compare': {'compare': ('runs/block/post_norm/seed_0', shown)}}[flags]
  options = dict.fromkeys(field.name for field in dataclasses.fields(command.InspectOptions))
  options |= {'compare': (), 'changes': {}, 'experiments': experiments, **runs}
  with pytest.raises(ConfigError) as refused:
    command.inspect(command.InspectOptions(**options), new_console())
  assert_asks(str(refused.value), received, shown)
  with pytest.raises(ConfigError) as refused:
    trained_run.load_params(received)
  assert_asks(str(refused.value), received, str(received))


@pytest.mark.parametrize(
  'arguments',
  [
    ['--experiment=block', '--extend', '--config.run.steps=900'],
    ['--init_from=runs/block/baseline/seed_0', '--name=x'],
  ],
)
def test_a_received_run_is_not_continued_without_asking(received, capfd, arguments):
  assert run_main(*arguments, '--seeds=0') == 2
  output, error = capfd.readouterr()
  assert (output, error.count('\n')) == ('', 1)
  assert_asks(error.strip(), received, 'runs/block/baseline/seed_0')


@pytest.mark.parametrize(
  ('arguments', 'code'),
  [
    (['--status'], 0),
    (['--status', '--experiment=block', '--seeds=0'], 0),
    (['--list'], 0),
    pytest.param(['--compare=runs', '--name=all'], 0, marks=pytest.mark.slow),
    (['--experiment=block', '--seeds=0', '--variants=baseline'], 2),  # another run is there
  ],
)
def test_a_received_run_is_listed_and_compared_without_its_file(received, capfd, svg_only, arguments, code):
  assert run_main(*arguments) == code
  assert not (received / 'executed').exists()
  assert capfd.readouterr().err.count('\n') == code // 2
  assert find_runs(Path('runs'), 'block').damaged == find_runs(Path('runs')).damaged == []
  assert not (received / 'executed').exists()


def test_the_file_of_a_received_run_is_executed_if_it_is_named(received):
  ideas.load(received / 'evil.py')
  assert (received / 'executed').exists()
  assert trained_run.open_run(received)[0].model.connection == 'evil'


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
