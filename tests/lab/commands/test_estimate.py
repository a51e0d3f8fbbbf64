import os
import re
import subprocess
import sys

import pytest

from model.config import ModelConfig
from model.counts import flops_per_token, num_parameters
from training.code_version import PROJECT


def estimated(folder, *arguments, **environment) -> list[str]:
  """The lines that `train.py --estimate` prints; it writes nothing."""
  command = [sys.executable, str(PROJECT / 'train.py'), '--estimate', '--config.model.unroll=1', *arguments]
  ended = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
  assert (ended.returncode, ended.stderr) == (0, '')
  assert list(folder.iterdir()) == []
  return ended.stdout.splitlines()


@pytest.mark.slow
def test_a_mesh_larger_than_this_machine_is_estimated_and_nothing_is_written(tmp_path):
  lines = estimated(
    tmp_path, '--name=large', '--config.model.num_layers=3', '--config.model.d_model=256', '--config.mesh.data=2',
    '--config.mesh.fsdp=4', XLA_FLAGS='--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true',
  )  # fmt: skip
  (line,) = [line for line in lines if line.strip().startswith('large')]
  name, data, _, fsdp, *numbers = line.replace(',', '').split()
  parameters, gigaflops, parameters_mb, optimizer_mb, temporaries_mb, total_mb = map(float, numbers)
  assert (name, data, fsdp) == ('large', '2', '4')
  model = ModelConfig(num_layers=3, d_model=256, num_heads=4)
  assert parameters == num_parameters(model)
  assert gigaflops == pytest.approx(16 * 64 * flops_per_token(model, 64) / 1e9, abs=0.05)
  assert parameters_mb == pytest.approx(4 * parameters / 4 / 1e6, rel=0.03)  # float32, sharded over four; not vectors
  assert optimizer_mb == pytest.approx(2 * parameters_mb, abs=0.1)  # Adam's two moments
  assert temporaries_mb > 0
  assert total_mb == pytest.approx(parameters_mb + optimizer_mb + temporaries_mb, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('arguments', 'runs'),
  [
    (['--sweep=model.num_layers=1,2'], 6),
    (['--experiment=block', '--variants=baseline,post_norm', '--tune'], 6 + 2 * 5 * 2),
  ],
)
def test_without_finished_runs_the_time_is_estimated_from_timed_steps(tmp_path, arguments, runs):
  lines = estimated(
    tmp_path, *arguments, '--seeds=0-2', '--config.model.d_model=16', '--config.run.steps=50', '--workers=1',
  )  # fmt: skip
  expected = rf'about [\d.]+ (s|min|h) for {runs} runs, compilation not included \(from 5 timed steps of each variant, '
  assert re.fullmatch(expected + r'one at a time\)', lines[-1])
