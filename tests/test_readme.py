"""The commands of the README and of docs/ parse, what they name exists, and their links lead to files."""

import re
import shlex
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver
from documented_commands import commands_of, pages, write_documented_files

import reproduce
import train
from configs.flags import load_config
from lab.cli.command_line import parse_flags
from lab.commands.request import resolve
from lab.core import plan, registry
from model.activations import ACTIVATIONS

PROJECT = Path(train.__file__).parent
README = (PROJECT / 'README.md').read_text('utf8')
PAGES = '\n'.join(page.read_text('utf8') for page in pages())
COMMANDS = commands_of('train')


def test_the_two_commands_are_complete():
  lines = [line for line in README.splitlines() if line.startswith('python3 -m venv')]
  assert len(lines) == 2
  assert lines[0].endswith('.venv/bin/python train.py')
  assert lines[1].endswith('.venv/bin/python -m pytest')


def test_commands_are_found():
  assert len(COMMANDS) >= 6


@pytest.mark.parametrize('command', COMMANDS)
def test_a_command_of_train_can_be_planned(command, monkeypatch, tmp_path, own_parts):
  write_documented_files(tmp_path)
  monkeypatch.chdir(tmp_path if '--experiment=ideas/' in command else PROJECT)
  with flagsaver.flagsaver():
    assert len(parse_flags('train.py', shlex.split(command))) == 1
    experiment, changes = resolve(train.request())
    scale = load_config(flags.FLAGS.config or str(PROJECT / experiment.config))
    assert plan.plan_runs(experiment, scale, changes, tmp_path)


def test_the_commands_of_reproduce_parse():
  saved = flagsaver.save_flag_values(reproduce.FLAGS)
  assert len(commands_of('reproduce')) >= 3
  for command in commands_of('reproduce'):
    assert reproduce.FLAGS(shlex.split(command))[1:] == [], command
  flagsaver.restore_flag_values(saved, reproduce.FLAGS)


def test_tables_list_the_values_of_the_config():
  (activations,) = re.findall(r'^\| `model\.feed_forward` \| (.*) \|$', PAGES, re.MULTILINE)
  assert set(re.findall(r'`(\w+)`', activations)) == set(ACTIVATIONS)


def test_the_readme_is_short():
  assert len(README.split()) <= 1500


@pytest.mark.parametrize('page', pages(), ids=lambda page: page.name)
def test_links_lead_to_files(page):
  for target in re.findall(r'\]\(([^)#:]+)\)', page.read_text('utf8')):
    assert (page.parent / target).exists(), target


@pytest.mark.parametrize('name', registry.reproduction_names())
def test_sources_of_reproductions_are_named(name):
  (section,) = re.findall(r'^## Sources$(.*?)^## ', README, re.MULTILINE | re.DOTALL)
  assert f'`{name}`' in section
  for author, year in re.findall(r'(\w+)(?: et al\.| & \w+)? (\d{4})', registry.find_reproduction(name).source):
    assert re.search(rf'{author}.* {year}.*`{name}`', section), f'{author} {year}'


def test_every_direct_dependency_is_explained():
  names = re.findall(r'^([\w-]+)', (PROJECT / 'requirements.in').read_text('utf8'), re.MULTILINE)
  assert names
  for name in names:
    assert f'`{name}`' in README
