"""Kills and restarts `python train.py` at random moments, and compares the result with an uninterrupted run.

  python tests/kill_many_times.py --kills=60 --seed=0

It takes about 7 seconds per kill. Every third trial starts with empty caches.
"""

import argparse
import collections
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROJECT = Path(__file__).parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / 'tests')]

import jax  # noqa: E402
import numpy as np  # noqa: E402
from event_files import read_events  # noqa: E402

from training.config import Config  # noqa: E402
from training.run_files.checkpoint import load_checkpoint, steps_in  # noqa: E402
from training.state import init_state  # noqa: E402

STEPS, EVALUATED_EVERY, SAVED_EVERY = 60, 10, 6
COMMAND = [
  sys.executable, str(PROJECT / 'train.py'), '--sweep=model.connection=pre,post', '--workers=1',
  '--config.data.task=copy', '--config.data.sequence_length=16', '--config.model.num_layers=2',
  '--config.model.d_model=16', '--config.model.num_heads=2', '--config.model.unroll=1', f'--config.run.steps={STEPS}',
  '--config.run.batch_size=4', '--config.run.log_every=1', f'--config.run.evaluations={STEPS // EVALUATED_EVERY}',
  '--config.run.evaluation_batches=16', f'--config.run.checkpoint_every={SAVED_EVERY}',
  '--config.optimizer.warmup_steps=4',
]  # fmt: skip
VARIANTS = ('connection=pre', 'connection=post')
WALL_CLOCK = ('seconds', 'tokens_per_second')

# Moments of a kill: the condition, the longest random delay after it in seconds, and the weight of the choice.
MOMENTS: dict[str, tuple[Callable[[Path], bool], float, int]] = {
  'start': (lambda folder: True, 3.0, 2),
  'compile': (lambda folder: any((run / 'lock').exists() for run in unfinished(folder)), 4.0, 3),
  'step': (lambda folder: any(last_step(run) > 0 for run in unfinished(folder)), 0.5, 3),
  'evaluation': (lambda folder: any(last_step(run) % EVALUATED_EVERY == 9 for run in unfinished(folder)), 0.05, 3),
  'save': (lambda folder: any(is_saving(run) for run in unfinished(folder)), 0.05, 4),
  'between runs': (lambda folder: len(unfinished(folder)) == 1, 0.5, 2),
  'report': (lambda folder: not unfinished(folder), 3.0, 1),
}


def runs_of(folder: Path) -> list[Path]:
  return [folder / 'runs' / 'custom' / variant / 'seed_0' for variant in VARIANTS]


def unfinished(folder: Path) -> list[Path]:
  return [run for run in runs_of(folder) if not (run / 'result.json').exists()]


def last_step(run: Path) -> int:
  """The step of the last complete line; 0 if there is none."""
  path = run / 'metrics.jsonl'
  lines = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
  return json.loads(lines[-1])['step'] if lines else 0


def is_saving(run: Path) -> bool:
  return any('.saving' in name for name in os.listdir(run / 'checkpoints')) if (run / 'checkpoints').is_dir() else False


def start(folder: Path, cache: Path) -> subprocess.Popen:
  """Starts the command in a new process group."""
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / 'output.txt').open('ab') as output:
    return subprocess.Popen(
      COMMAND, cwd=folder, env=os.environ | {'BLOCKLAB_CACHE': str(cache)}, stdout=output, stderr=output,
      start_new_session=True,
    )  # fmt: skip


def wait_for(moment: Callable[[], bool], process: subprocess.Popen) -> None:
  """Waits until the condition holds or the process exits."""
  while process.poll() is None and not moment():
    time.sleep(0.001)


def kill_at(moment: str, process: subprocess.Popen, folder: Path, random_numbers: random.Random) -> bool:
  """Waits for the moment and kills the process group; False if the command exited before."""
  reached, within, _ = MOMENTS[moment]
  wait_for(lambda: reached(folder), process)
  try:
    process.wait(random_numbers.uniform(0, within))
  except subprocess.TimeoutExpired:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True
  return False


def finish(folder: Path, cache: Path) -> None:
  process = start(folder, cache)
  assert process.wait() == 0, (folder / 'output.txt').read_text()


def compare(folder: Path, expected: Path) -> None:
  """Raises AssertionError unless the runs are equal to the bit, except for wall-clock times."""
  for run, other in zip(runs_of(folder), runs_of(expected), strict=True):
    assert (run / 'metrics.jsonl').read_bytes() == (other / 'metrics.jsonl').read_bytes(), run
    rows = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
    assert [row['step'] for row in rows] == list(range(1, STEPS + 1))
    events = read_events(run / 'tensorboard')
    assert [(step, name) for step, name, _ in events] == [
      (row['step'], name) for row in rows for name in row if name != 'step'
    ]
    assert events == read_events(other / 'tensorboard')
    for leaf, wanted in zip(jax.tree.leaves(final_state(run)), jax.tree.leaves(final_state(other)), strict=True):
      assert np.asarray(leaf).tobytes() == np.asarray(wanted).tobytes()
    left = [path for path in (folder / 'runs').rglob('*') if path.name.startswith('.') or '.saving' in path.name]
    assert not left, left
  assert results_of(folder) == results_of(expected)


def final_state(run: Path):
  config = Config.from_flat(json.loads((run / 'config.json').read_text()))
  like = jax.eval_shape(lambda seed: init_state(config, seed), jax.ShapeDtypeStruct((), np.uint32))
  (step, *_) = steps_in(run / 'checkpoints')
  assert step == STEPS
  return load_checkpoint(run / 'checkpoints' / str(step), like)[0]


def results_of(folder: Path) -> list[dict[str, str]]:
  with (folder / 'runs' / 'custom' / 'results.csv').open() as file:
    return [{name: value for name, value in row.items() if name not in WALL_CLOCK} for row in csv.DictReader(file)]


def kill_many_times(kills: int, seed: int, folder: Path) -> Iterator[str]:
  """Kills this many times; yields the moment of each kill, and `compared` after each trial."""
  random_numbers, done, trial = random.Random(seed), 0, 0
  finish(folder / 'uninterrupted', folder / 'cache')
  while done < kills:
    trial_folder, trial = folder / f'trial_{trial}', trial + 1
    cache = folder / f'cache_{trial}' if trial % 3 == 0 else folder / 'cache'
    killed = True
    while killed and done < kills:
      (moment,) = random_numbers.choices(list(MOMENTS), [weight for *_, weight in MOMENTS.values()])
      killed = kill_at(moment, start(trial_folder, cache), trial_folder, random_numbers)
      if killed:
        done += 1
        yield moment
    finish(trial_folder, cache)
    compare(trial_folder, folder / 'uninterrupted')
    shutil.rmtree(trial_folder)
    yield 'compared'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--kills', type=int, default=60)
  parser.add_argument('--seed', type=int, default=0)
  arguments = parser.parse_args()
  counts: collections.Counter[str] = collections.Counter()
  with tempfile.TemporaryDirectory() as folder:
    for moment in kill_many_times(arguments.kills, arguments.seed, Path(folder)):
      counts[moment] += 1
      print(f'{time.strftime("%X")}  {moment}', flush=True)
  print(', '.join(f'{moment}: {count}' for moment, count in counts.items()))


if __name__ == '__main__':
  main()
