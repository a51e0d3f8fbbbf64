import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name('eight_devices.py')


@pytest.mark.slow
def test_eight_devices_give_the_numbers_of_one(tmp_path):
  environment = os.environ | {'JAX_NUM_CPU_DEVICES': '8', 'PYTHONPATH': str(SCRIPT.parents[2])}
  command = [sys.executable, str(SCRIPT), str(tmp_path)]
  ended = subprocess.run(command, env=environment, capture_output=True, text=True)
  assert ended.returncode == 0, ended.stderr
  found = json.loads(ended.stdout)
  for mesh, distances in found['agreement'].items():
    for what, distance in distances.items():
      assert distance < 1e-5, (mesh, what)
  assert found['held out'] < 1e-6
  assert found['same bits'] == {'initial values': True, 'on one device': True, 'on four devices': True}
  compiled = found['compiled']
  assert compiled['bytes a device'] <= 1.05 * compiled['bytes'] / 8
  assert compiled['gathered'] <= compiled['kernel']  # one layer at a time; embedding and head are smaller here
  assert compiled['summed'] <= compiled['kernel']


@pytest.mark.slow
def test_eight_devices_measure_the_split_of_every_design():
  script = SCRIPT.with_name('designs_on_devices.py')
  paths = f'{SCRIPT.parents[2]}:{SCRIPT.parents[1] / "model"}'
  environment = os.environ | {'JAX_NUM_CPU_DEVICES': '8', 'PYTHONPATH': paths}
  ended = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
  assert ended.returncode == 0, ended.stderr
  for name, distances in json.loads(ended.stdout).items():
    assert max(distances.values()) < 1e-4, (name, distances)
