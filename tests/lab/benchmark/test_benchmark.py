import pytest
from rich.console import Console

from lab.benchmark import __main__ as command
from lab.benchmark import racing, steps
from lab.benchmark.racing import Entry, Result, race
from lab.benchmark.sizes import SIZES
from training.config import ConfigError

RACER = """
import json, sys
print('welcome to this machine', end='', flush=True)  # as a site's sitecustomize may
from lab.benchmark import serving

work = json.loads(sys.argv[1])
if work['name'] == 'broken':
  sys.exit(3)


def take(count):
  print('a library says something')
  with open('turns.txt', 'a') as file:
    file.write(f'{work["name"]}{work["core"]} ' * (count > 0))


serving.serve(take, {'parameters': 7})
"""


@pytest.fixture
def entry(tmp_path, monkeypatch):
  (tmp_path / 'fake_racer.py').write_text(RACER)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(racing, 'TURN', 0.0)  # one step a turn

  def make(name: str, cores: tuple[int | None, ...] = (None,)) -> Entry:
    return Entry(name, {'name': name}, 'fake_racer', cores, {'PYTHONPATH': f'{racing.PROJECT}:{tmp_path}'})

  return make


def test_each_takes_its_turn_and_the_order_changes(entry, tmp_path):
  a, b = race([entry('a'), entry('b')], turns=3)
  turns = (tmp_path / 'turns.txt').read_text().split()
  assert turns[4:] == ['bNone', 'aNone', 'aNone', 'bNone', 'bNone', 'aNone']  # after two each to warm up
  assert a.entry.name == 'a'
  assert a.about == b.about == {'parameters': 7}
  assert len(a.seconds) == 3
  assert all(0 < seconds < 1 for seconds in a.seconds)
  assert 5e6 < a.peak_bytes < 1e8  # a bare interpreter


def test_several_processes_step_side_by_side(entry, tmp_path):
  (result,) = race([entry('a', (0, 1))], turns=3)
  assert len(result.seconds) == 3
  assert sorted((tmp_path / 'turns.txt').read_text().split()) == ['a0'] * 5 + ['a1'] * 5


def test_a_racer_that_fails_is_named(entry):
  with pytest.raises(RuntimeError, match='broken ended with code 3'):
    race([entry('a'), entry('broken')], turns=3)


def test_ratios_are_of_the_same_turn(entry):
  slow, quick = (Result(entry('a'), {}, seconds, 0) for seconds in ([4.0, 9.0, 20.0], [2.0, 3.0, 5.0]))
  assert slow.over(quick) == 3.0
  assert slow.median == 9.0


def test_what_is_counted(entry):
  result = Result(entry('a', (0, 1)), {}, [0.5, 0.25, 0.125], 0)
  assert steps._tokens_per_second(result, SIZES['medium']) == 2 * 16 * 256 / 0.25
  assert steps._peak(result) == 2 * 2048**3 / 0.125
  assert [steps._devices(SIZES['small'], cores) for cores in (1, 2, 6, 64)] == [1, 2, 4, 16]  # 16 sequences divide so


def test_what_cannot_be_measured_is_told_in_one_line(capsys, monkeypatch):
  command.OWN(['benchmark', '--peers', '--growth'])
  assert command.main(Console()) == 2
  assert capsys.readouterr().err == 'benchmark: --peers and --growth are measured one at a time\n'
  monkeypatch.setattr('importlib.util.find_spec', lambda library: None)
  command.OWN(['benchmark', '--peers', '--nogrowth'])
  with pytest.raises(ConfigError, match='needs torch: pip install -r requirements-peers'):
    command.main(Console())
