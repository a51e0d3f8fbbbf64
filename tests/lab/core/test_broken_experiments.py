"""An invalid file in experiments/ affects no other experiment."""

import importlib.util
import shutil

import pytest
from in_process import run_main

from lab.core import registry
from lab.core.moved_modules import MOVED
from training.config import ConfigError

HEAD = 'from lab.core.experiment import Experiment, Grid\n'
GOOD = "EXPERIMENT = Experiment(question='Why?', variants={'a': {}, 'b': {'model.num_layers': 3}}"
BROKEN = {  # file name: (content, part of the message)
  'syntax.py': ('x = 1\nEXPERIMENT = Experiment(\n', 'syntax.py, line 2: not valid Python: '),
  'nulls.py': ('EXPERIMENT = 1\0\n', 'nulls.py: not valid Python: '),
  'binary.py': (b'\0\5\26\7\xff\xfe', 'binary.py'),
  'latin.py': (b'EXPERIMENT = "\xe9"\n', 'latin.py'),
  'number.py': ('\nEXPERIMENT = 5\n', 'number.py, line 2: EXPERIMENT must be an Experiment'),
  'nothing.py': ('EXPERIMENT = None\n', 'not None'),
  'a_class.py': (HEAD + 'EXPERIMENT = Experiment\n', 'EXPERIMENT must be an Experiment'),
  'no_variants.py': (HEAD + "EXPERIMENT = Experiment(question='Why?', variants={})\n", 'variants is empty'),
  'missing.py': (HEAD + "EXPERIMENT = Experiment(question='Why?')\n", 'missing.py, line 2: TypeError'),
  'a_list.py': (HEAD + "EXPERIMENT = Experiment(question='Why?', variants=['a'])\n", 'variants must be a dict'),
  'no_dict.py': (HEAD + "EXPERIMENT = Experiment(question='Why?', variants={'a': 3})\n", "['a'] must be a dict"),
  'name.py': (HEAD + "EXPERIMENT = Experiment(question='Why?', variants={'../a': {}})\n", "name '../a'"),
  'own_file.py': (HEAD + "EXPERIMENT = Experiment(question='Why?', variants={'tuning': {}})\n", "name 'tuning'"),
  'a_key.py': (HEAD + "EXPERIMENT = Experiment(question='Why?', variants={1: {}})\n", 'a non-empty string, not 1'),
  'path.py': (HEAD + GOOD + ", base={'model.depth': 3})\n", "unknown config key in EXPERIMENT.base 'model.depth'"),
  'question.py': (HEAD + "EXPERIMENT = Experiment(question=3, variants={'a': {}})\n", 'must be a non-empty string'),
  'half_a_seed.py': (HEAD + GOOD + ', seeds=(0, 1.5))\n', 'EXPERIMENT.seeds=(0, 1.5): must be a tuple of'),
  'one_seed.py': (HEAD + GOOD + ', seeds=3)\n', 'EXPERIMENT.seeds=3'),
  'same_seeds.py': (HEAD + GOOD + ', seeds=(1, 1))\n', 'contains duplicates'),
  'grid.py_.py': (HEAD + GOOD + ')\n', 'must not contain a dot'),
  'no_grid.py': (HEAD + GOOD + ', grid=(1e-3,))\n', 'EXPERIMENT.grid must be a Grid'),
  'rates.py': (HEAD + GOOD + ', grid=Grid(learning_rates=()))\n', 'learning_rates=(): must be'),
  'a_config.py': (HEAD + GOOD + ', config=None)\n', 'EXPERIMENT.config must be a non-empty string'),
  'imports.py': ('import nowhere_to_be_found\nEXPERIMENT = 1\n', 'imports.py, line 1: ModuleNotFoundError'),
  'moved.py': (
    'from experiments.experiment import Experiment, Grid\n' + GOOD + ')\n',
    'moved.py, line 1: experiments.experiment is now lab.core.experiment',
  ),
  'moved_as.py': ('import experiments.grid as grid\nEXPERIMENT = 1\n', 'is now lab.reproduce.learning_rate_grid'),
  'moved_name.py': (
    'from experiments import (\n  block,\n  figure_style,\n)\nEXPERIMENT = 1\n',
    'moved_name.py, line 1: experiments.figure_style is now lab.figures.figure_style',
  ),
  'moved_in_two.py': (
    'from experiments.runs import ExperimentRuns, mean_curve\nEXPERIMENT = 1\n',
    'runs is now split into lab.analysis.experiment_runs, lab.analysis.recorded_run and lab.analysis.load_runs',
  ),
  'moved_in_training.py': ('from training.data import load_for\nEXPERIMENT = 1\n', 'training.data.loading'),
  'leaves.py': ('import sys\nsys.exit(3)\nEXPERIMENT = 1\n', 'leaves.py, line 2: SystemExit: 3'),
  'deep.py': ('EXPERIMENT = ' + '-' * 100_000 + '1\n', 'deep.py'),
}  # fmt: skip
WORKS = {
  'annotated.py': HEAD + GOOD.replace('EXPERIMENT', 'EXPERIMENT: Experiment') + ')\n',
  'in_if.py': HEAD + f'if True:\n  {GOOD})\n',
  'in_try.py': HEAD + f'try:\n  {GOOD})\nfinally:\n  pass\n',
  'my-exp.py': HEAD + GOOD + ')\n',
  '2024.py': HEAD + GOOD + ')\n',
  'latin_cookie.py': b'# -*- coding: latin-1 -*-\n' + (HEAD + GOOD).encode() + b')  # \xe9\n',
  'escape.py': HEAD + 'PATTERN = "\\d"\n' + GOOD + ')\n',
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A separate folder of experiments, with one valid experiment in it."""
  folder = tmp_path / 'experiments'
  folder.mkdir()
  shutil.copy(registry.FOLDER / 'heads.py', folder)
  monkeypatch.setattr(registry, 'FOLDER', folder)
  monkeypatch.setattr('experiments.__path__', [str(folder), *__import__('experiments').__path__])
  return folder


def write(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize('name', BROKEN)
def test_an_invalid_file_gives_one_line_and_affects_no_other(folder, name):
  content, message = BROKEN[name]
  write(folder / name, content)
  assert len(registry.find_experiment('heads').variants) > 1
  with pytest.raises(ConfigError) as error:
    registry.find_experiment(name.removesuffix('.py'))
  assert message in str(error.value)
  assert '\n' not in str(error.value)
  assert registry.find_experiment_or_none(name.removesuffix('.py')) is None


@pytest.mark.filterwarnings('ignore:.*invalid escape:SyntaxWarning', 'ignore:.*invalid escape:DeprecationWarning')
@pytest.mark.parametrize('name', WORKS)
def test_an_experiment_is_found_for_every_form_of_assignment_and_file_name(folder, name):
  write(folder / name, WORKS[name])
  found = registry.find_experiment(name.removesuffix('.py'))
  assert (found.name, list(found.variants)) == (name.removesuffix('.py'), ['a', 'b'])


def test_the_list_shows_valid_experiments_and_the_errors_of_invalid_files(folder, capfd):
  for name, (content, _) in BROKEN.items():
    write(folder / name, content)
  for hidden in ('.#heads.py', '._heads.py'):
    (folder / hidden).symlink_to('user@host.1234:5678')
  (folder / 'dangling.py').symlink_to('nowhere')
  (folder / 'folder.py').mkdir()
  assert run_main('--list') == 0
  output, error = capfd.readouterr()
  assert error == ''
  assert 'heads_4' in output
  refusals = [line for line in output.splitlines() if line.startswith('cannot be used: ')]
  assert len(refusals) == len(BROKEN) + 2
  for _, message in BROKEN.values():
    assert any(message in line for line in refusals)
  assert 'cannot be used: experiments/folder.py: is not a file' in refusals
  assert '._heads' not in output


def test_running_an_invalid_experiment_prints_one_line_and_exits_with_2(folder, capfd, tmp_path):
  write(folder / 'syntax.py', BROKEN['syntax.py'][0])
  assert run_main('--experiment=syntax', f'--workdir={tmp_path / "runs"}') == 2
  output, error = capfd.readouterr()
  assert (output, error.count('\n')) == ('', 1)
  assert error.startswith('train.py: experiments/syntax.py, line 2: not valid Python')
  assert not (tmp_path / 'runs').exists()


def test_a_file_is_parsed_again_after_it_was_edited(folder):
  write(folder / 'late.py', 'EXPERIMENT = 5\n')
  with pytest.raises(ConfigError):
    registry.find_experiment('late')
  assert 'late' in registry.experiment_names()
  write(folder / 'late.py', 'NOTHING = 57\n')
  assert 'late' not in registry.experiment_names()


def test_every_moved_module_exists_at_its_new_name():
  for old, places in MOVED.items():
    assert importlib.util.find_spec(old) is None or old == 'training.data', old
    for place in places:
      assert importlib.util.find_spec(place) is not None, f'{old} is not in {place}: correct lab/core/moved_modules.py'
