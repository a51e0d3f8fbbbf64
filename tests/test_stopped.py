"""SIGTERM and SIGINT to `python train.py`, as from a scheduler and a terminal."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from kill_many_times import MOMENTS, compare, finish, last_step, runs_of, start, wait_for


def catches_sigterm(process: subprocess.Popen) -> bool:
  """Whether the process has installed its signal handler."""
  status = Path(f'/proc/{process.pid}/status').read_text()
  mask = int(status.partition('SigCgt:')[2].split()[0], 16)
  return bool(mask >> (signal.SIGTERM - 1) & 1)


@pytest.mark.slow
def test_runs_stopped_in_any_phase_resume_to_the_bit(tmp_path):
  cache, folder = tmp_path / 'cache', tmp_path / 'stopped'
  finish(tmp_path / 'uninterrupted', cache)
  for moment, number in (
    ('start', signal.SIGTERM), ('start', signal.SIGINT), ('compile', signal.SIGTERM), ('compile', signal.SIGINT),
    ('step', signal.SIGTERM), ('evaluation', signal.SIGINT), ('save', signal.SIGTERM), ('step', signal.SIGINT),
    ('between runs', signal.SIGTERM), ('report', signal.SIGINT),
  ):  # fmt: skip
    before = [last_step(run) for run in runs_of(folder)]
    process = start(folder, cache)
    reached, *_ = MOMENTS[moment]
    wait_for(lambda reached=reached, process=process: catches_sigterm(process) and reached(folder), process)
    if number == signal.SIGINT:
      os.killpg(process.pid, number)  # to the workers too, as a terminal does
    else:
      process.send_signal(number)
    assert process.wait(15) == 75, (folder / 'output.txt').read_text()
    with pytest.raises(ProcessLookupError):
      os.killpg(process.pid, 0)
    assert 'stopped' in (folder / 'output.txt').read_text()
    assert 'Traceback' not in (folder / 'output.txt').read_text()
    for run, steps in zip(runs_of(folder), before, strict=True):
      assert last_step(run) >= steps
      assert not (run / 'checkpoints').exists() or not any(
        '.saving' in name for name in os.listdir(run / 'checkpoints')
      )
  finish(folder, cache)
  compare(folder, tmp_path / 'uninterrupted')


@pytest.mark.slow
def test_a_second_sigint_quits_at_once(tmp_path):
  process = start(tmp_path, tmp_path / 'cold')  # compiles for seconds, which no signal interrupts
  wait_for(lambda: (runs_of(tmp_path)[0] / 'lock').exists(), process)
  os.killpg(process.pid, signal.SIGINT)
  wait_for(lambda: 'stopping' in (tmp_path / 'output.txt').read_text(), process)
  os.killpg(process.pid, signal.SIGINT)
  assert process.wait(5) == 130
  assert 'Traceback' not in (tmp_path / 'output.txt').read_text()
