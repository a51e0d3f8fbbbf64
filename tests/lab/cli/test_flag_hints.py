"""The hint for an unknown flag, and the output of --help."""

import pytest
from absl import flags
from in_process import run_main

from lab.cli import flag_hints


@pytest.mark.parametrize(
  ('typed', 'meant'),
  [
    ('learning_rate', "'config.optimizer.learning_rate' or 'shared_learning_rate'"),
    ('learning-rate', "'config.optimizer.learning_rate' or 'shared_learning_rate'"),
    ('lr', "'config.optimizer.learning_rate' or 'shared_learning_rate'"),
    ('learning_rat', "'config.optimizer.learning_rate'"),
    ('steps', "'config.run.steps'"),
    ('layers', "'config.model.num_layers'"),
    ('num_layers', "'config.model.num_layers'"),
    ('batch_size', "'config.run.batch_size'"),
    ('batch-size', "'config.run.batch_size'"),
    ('seed', "'seeds'"),
    ('epochs', "'config.run.steps'? (the length of training is set in steps)"),
    ('d_model', "'config.model.d_model'"),
    ('n_embd', "'config.model.d_model'"),
    ('weight_decay', "'config.optimizer.weight_decay'"),
    ('model.num_layers', "'config.model.num_layers'"),
    ('config.optimiser.clip', "'config.optimizer.clip'"),
    ('sequence_lenght', "'config.data.sequence_length'"),
    ('output_dir', "'workdir'"),
    ('variantz', "'variants'"),
    ('exp', "'experiment'"),
    ('jobs', "'workers'"),
    ('optimizer', "'config.optimizer.name'"),
  ],
)
def test_an_unknown_flag_gets_a_suggestion(typed, meant, capfd):
  assert run_main(f'--{typed}=3') == 2
  output, error = capfd.readouterr()
  assert (output, error.count('\n')) == ('', 1)
  assert f'unknown flag --{typed}: did you mean {meant}' in error


def test_every_suggestion_is_a_flag_of_the_command():
  named = {flag for meant in flag_hints.SYNONYMS.values() for flag in meant}
  assert named <= set(flags.FLAGS)
  assert not set(flag_hints.SYNONYMS) & set(flags.FLAGS), 'the hint for an existing flag is never shown'
  assert set(flag_hints.ADVICE) <= set(flag_hints.SYNONYMS)


def test_only_flags_of_the_command_are_suggested():
  assert flag_hints.flag_hint('learning_rate', ['config.optimizer.learning_rate', 'run']) == (
    ": did you mean 'config.optimizer.learning_rate'?"
  )
  assert flag_hints.flag_hint('seed', ['config.run.init_seed', 'run']) == ": did you mean 'config.run.init_seed'?"


@pytest.mark.parametrize('flag', ['--help', '-h', '-help', '--helpshort'])
def test_help_is_one_screen_and_exits_with_code_0(flag, capfd):
  assert run_main(flag) == 0
  output, error = capfd.readouterr()
  assert error == ''
  lines = output.splitlines()
  assert len(lines) < 60
  assert max(map(len, lines)) <= 120
  for name in ('--experiment=', '--seeds=', '--[no]tune', '--config.SECTION.FIELD=', '--workdir='):
    assert sum(line.startswith(f'  {name}') for line in lines) == 1
  assert not any('--config.model.rezero' in line for line in lines)


def test_helpfull_has_every_flag(capfd):
  assert run_main('--helpfull') == 0
  output, _ = capfd.readouterr()
  assert '--[no]config.model.rezero' in output
  assert '--slurm_partition' in output
