"""The commands of the README and of the pages it links to are understood, and its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

import train
from configs.flags import load_config
from lab.cli.command_line import parse_flags
from lab.commands.request import resolve
from lab.core import plan

PROJECT = Path(train.__file__).parent
README = (PROJECT / 'README.md').read_text('utf8')
DOCS = {page.name: page.read_text('utf8') for page in sorted((PROJECT / 'docs').glob('*.md'))}
PAGES = '\n'.join([README, *DOCS.values()])
COMMANDS = sorted(set(re.findall(r'^python (train\.py .*)$', PAGES, re.MULTILINE)))


def test_the_two_lines_stand_alone():
  lines = [line for line in README.splitlines() if line.startswith('python3 -m venv')]
  assert len(lines) == 2
  assert lines[0].endswith('.venv/bin/python train.py')
  assert lines[1].endswith('.venv/bin/python -m pytest')


def test_there_are_commands_to_check():
  assert len(COMMANDS) >= 6


@pytest.mark.parametrize('command', COMMANDS)
def test_a_command_of_the_readme_is_understood(command, monkeypatch, tmp_path):
  monkeypatch.chdir(PROJECT)
  with flagsaver.flagsaver():
    assert len(parse_flags('train.py', shlex.split(command))) == 1
    experiment, changes = resolve(train.request())
    scale = load_config(flags.FLAGS.config or str(PROJECT / experiment.config))
    assert plan.plan_runs(experiment, scale, changes, tmp_path)


def test_the_variants_named_are_those_of_the_config():
  (placements,) = re.findall(r'^\| `model\.norm_placement` \| (.*) \|$', PAGES, re.MULTILINE)
  (activations,) = re.findall(r'^\| `model\.feed_forward` \| (.*) \|$', PAGES, re.MULTILINE)
  assert re.findall(r'`(\w+)`', placements) == list(flags.FLAGS['norm_placement'].parser.enum_values)
  assert set(re.findall(r'`(\w+)`', activations)) == set(flags.FLAGS['feed_forward'].parser.enum_values)


def test_the_readme_is_for_a_person_in_a_hurry():
  assert len(README.split()) <= 1500


@pytest.mark.parametrize(('folder', 'text'), [(PROJECT, README), *((PROJECT / 'docs', text) for text in DOCS.values())])
def test_every_link_leads_somewhere(folder, text):
  for target in re.findall(r'\]\(([^)#:]+)\)', text):
    assert (folder / target).exists(), target


def test_every_direct_dependency_is_explained():
  names = re.findall(r'^([\w-]+)', (PROJECT / 'requirements.in').read_text('utf8'), re.MULTILINE)
  assert names
  for name in names:
    assert f'`{name}`' in README
