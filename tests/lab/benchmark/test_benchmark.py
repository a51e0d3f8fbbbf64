"""python -m lab.benchmark: alternating trials, what is computed from them, and its table."""

import io

import pytest
from rich.console import Console

from lab.benchmark import __main__ as command
from lab.benchmark import designs, training_speed, trials
from lab.benchmark.cases import SIZES, tokens_per_step
from lab.benchmark.result_table import Row, result_table
from lab.benchmark.trials import Case, Result, run_trials
from training.config import ConfigError

FAKE_WORKER = """
import json, sys
print('welcome to this machine', end='', flush=True)  # as a site's sitecustomize may
from lab.benchmark.worker_protocol import serve

task = json.loads(sys.argv[1])
if task['name'] == 'broken':
  sys.exit(3)


def iterate(count):
  print('output of a library')
  with open('iterations.txt', 'a') as file:
    file.write(f'{task["name"]}{task["core"]}x{count} ')


serve(iterate, {'parameters': 7})
"""


@pytest.fixture
def make_case(tmp_path, monkeypatch):
  """Makes a case whose workers log each request to iterations.txt."""
  (tmp_path / 'fake_worker.py').write_text(FAKE_WORKER)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(trials, 'MIN_TRIAL_SECONDS', 0.0)  # one iteration in a trial

  def make(name: str, cores: tuple[int | None, ...] = (None,)) -> Case:
    return Case(name, {'name': name}, 'fake_worker', cores, {'PYTHONPATH': f'{trials.PROJECT}:{tmp_path}'})

  return make


def requests(folder) -> list[str]:
  return (folder / 'iterations.txt').read_text().split()


def test_trials_alternate_in_order(make_case, tmp_path):
  a, b = run_trials([make_case('a'), make_case('b')], trials=3)
  order = ['bNonex1', 'aNonex1', 'aNonex1', 'bNonex1', 'bNonex1', 'aNonex1']
  assert requests(tmp_path)[4:] == order  # after two warm-up requests each
  assert a.case.name == 'a'
  assert a.facts == b.facts == {'parameters': 7}
  assert len(a.seconds) == 3
  assert all(0 < seconds < 1 for seconds in a.seconds)
  assert 5e6 < a.peak_bytes < 1e8  # a bare interpreter


def test_the_number_of_iterations_can_be_fixed(make_case, tmp_path):
  run_trials([make_case('a')], trials=2, iterations=4)
  assert requests(tmp_path) == ['aNonex1', 'aNonex1', 'aNonex4', 'aNonex4']


def test_several_workers_run_at_the_same_time(make_case, tmp_path):
  (result,) = run_trials([make_case('a', (0, 1))], trials=3)
  assert len(result.seconds) == 3
  assert sorted(requests(tmp_path)) == ['a0x1'] * 5 + ['a1x1'] * 5


def test_a_failed_worker_is_named(make_case):
  with pytest.raises(RuntimeError, match='worker of broken exited with code 3'):
    run_trials([make_case('a'), make_case('broken')], trials=3)


def test_ratios_are_taken_within_a_trial(make_case):
  slow, fast = (Result(make_case('a'), {}, seconds, 0) for seconds in ([4.0, 9.0, 20.0], [2.0, 3.0, 5.0]))
  assert slow.ratios(fast) == [2.0, 3.0, 4.0]
  assert slow.ratio(fast) == 3.0
  assert slow.median == 9.0


def test_tokens_and_peak_count_every_worker(make_case):
  result = Result(make_case('a', (0, 1)), {}, [0.5, 0.25, 0.125], 0)
  assert tokens_per_step(SIZES['medium'], result.case.cores) == 2 * 16 * 256
  assert training_speed._peak(result) == 2 * 2048**3 / 0.125
  counts = [training_speed._device_count(SIZES['small'], cores) for cores in (1, 2, 6, 64)]
  assert counts == [1, 2, 4, 16]  # the divisors of a batch of 16 sequences


def test_the_table_has_a_column_for_each_measurement(make_case):
  facts = {'compile_seconds': 1.5, 'temporary_bytes': 72.25e6}
  slow = Result(make_case('slow'), facts, [0.2, 0.3, 0.4], 500_000_000)
  fast = Result(make_case('fast'), facts, [0.1, 0.1, 0.1], 400_000_000)
  rows = [
    Row(fast, 'small', fast, tokens=100, flops=2e9, peak=40e9),
    Row(slow, '', fast, tokens=100, flops=2e9, peak=40e9),
  ]
  assert printed(rows) == [
    'group case ms ratio quartiles tokens/s GFLOP/s of peak compile s temp. MB memory MB',
    'small fast 100.0 1.000 1,000 20.0 50% 1.50 72.2 400',
    'slow 300.0 3.000 2.500 to 3.500 333 6.7 17% 1.50 72.2 500',
  ]


def test_the_table_omits_columns_without_entries(make_case):
  compiled_only = Result(make_case('6 layers'), {'compile_seconds': 2.5, 'temporary_bytes': 1e6}, [], 300_000_000)
  assert printed([Row(compiled_only)]) == ['case compile s temp. MB memory MB', '6 layers 2.50 1.0 300']


def printed(rows) -> list[str]:
  """The lines of a table with single spaces, without title and caption."""
  output = io.StringIO()
  Console(file=output, width=200).print(result_table('title', rows))
  title, heading, _rule, *lines = filter(None, (' '.join(line.split()) for line in output.getvalue().splitlines()))
  assert title == 'title'
  return [heading, *lines[: len(rows)]]


@pytest.mark.slow
def test_workers_measure_steps_attention_and_products():
  config = SIZES['small'].replace(
    {'model.num_layers': 1, 'model.d_model': 8, 'model.num_heads': 1, 'run.batch_size': 2}
  )
  tasks = {
    'step': {'config': config.to_flat()}, 'plain': {'attention': 'plain', 'shape': [1, 64, 1, 8]},
    'blocked': {'attention': 'blocked', 'shape': [1, 64, 1, 8]}, 'product': {'product': 8},
  }  # fmt: skip
  results = run_trials([Case(name, task) for name, task in tasks.items()], trials=1, iterations=1)
  for result in results:
    assert len(result.seconds) == 1
    assert result.facts['compile_seconds'] > 0
    assert result.facts['temporary_bytes'] >= 0


def test_invalid_flags_are_refused_in_one_line(capsys, monkeypatch):
  command.FLAGS(['benchmark', '--peers', '--growth'])
  assert command.main(Console()) == 2
  assert capsys.readouterr().err == 'benchmark: --peers and --growth are separate benchmarks: pass one\n'
  command.FLAGS(['benchmark', '--nopeers', '--growth', '--core=999999'])
  assert command.main(Console()) == 2
  assert capsys.readouterr().err.startswith('benchmark: --core=999999: this process may use the cores [')
  monkeypatch.setattr('importlib.util.find_spec', lambda library: None)
  command.FLAGS(['benchmark', '--peers', '--nogrowth', '--core=0'])
  monkeypatch.setattr('training.host.cores', lambda: [0])
  with pytest.raises(ConfigError, match='needs torch: pip install -r requirements-peers'):
    command.main(Console())


def test_every_design_is_measured_beside_the_reference(monkeypatch):
  groups = []

  def fake_trials(cases, count):
    groups.append([case.name for case in cases])
    return [Result(case, {}, [2.0 if case.name == 'pre' else 3.0] * count, 10**6) for case in cases]

  monkeypatch.setattr(designs, 'run_trials', fake_trials)
  table = designs.designs_table(['small'], 3, None, ['post', 'pre', 'none', 'sandwich', 'deepnorm'])
  assert groups == [['pre', 'post', 'none', 'sandwich'], ['pre', 'deepnorm']]
  columns = {column.header: list(column.cells) for column in table.columns}
  assert columns['case'] == ['pre', 'post', 'none', 'sandwich', 'deepnorm']
  assert columns['ratio'] == ['1.000', *['1.500'] * 4]
  with pytest.raises(ConfigError, match="'pots': must be one of pre"):
    designs.designs_table(['small'], 3, None, ['pots'])
