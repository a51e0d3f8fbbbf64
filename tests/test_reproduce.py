"""The command, the record and the page, on reproductions made up here."""

import dataclasses
import errno
import io
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from absl.testing import flagsaver
from rich.console import Console

import reproduce
from lab.core import registry
from lab.core.reproduction import Reproduction, at_least, exactly
from lab.figures import figure_style
from lab.reproduce import command, figure_data, gallery, record
from training.code_version import PROJECT
from training.config import ConfigError
from training.files import read_json

FIGURE_FILES = {'json', 'pdf', 'png', 'svg'}


def draw(measured):
  figure = figure_style.new_figure(2)
  axes = figure.add_subplot()
  axes.plot([0, 1], measured['line'], gid='the line')
  axes.set(xlabel='time (s)', ylabel='length (m)')
  return figure


def make(name, offset=0.0, **changes) -> Reproduction:
  def measure(seeds):
    line = np.array([1 / 3, 2 / 3], np.float32) + np.float32(offset)
    return {'line': line, 'by_seed': 5 + np.arange(seeds) + offset, 'unbounded': np.inf, 'count': np.int32(3)}

  fields = {
    'name': name, 'claim': f'Claim of {name} & <others>.', 'source': 'Someone 1999', 'seconds': 1, 'draw': draw,
    'caption': 'A line.', 'measure': measure, 'settings': {'seeds': 4}, 'full': {'seeds': 8},
    'expected': (
      exactly('line', 'the line', (1 / 3, 2 / 3), 1e-6), at_least('by_seed', 'by seed', 3, over_seeds=True),
    ),
  }  # fmt: skip
  return Reproduction(**{**fields, **changes})


def broken(seeds):
  raise RuntimeError('no luck')


@pytest.fixture
def there(monkeypatch, tmp_path):
  """Four reproductions: one that holds, one that does not, one that fails, one that takes too long to be asked for."""
  made = {
    'good': make('good'), 'off': make('off', offset=1.0), 'fails': make('fails', measure=broken),
    'long': make('long', seconds=2000),
  }  # fmt: skip
  monkeypatch.setattr(registry, 'reproduction_names', lambda: sorted(made))
  monkeypatch.setattr(registry, 'find_reproduction', made.__getitem__)
  monkeypatch.setattr(record, 'EXPECTED', tmp_path / 'expected')
  return made


def run(tmp_path, *arguments):
  kept = flagsaver.save_flag_values(reproduce.FLAGS)
  reproduce.FLAGS(['reproduce.py', f'--workdir={tmp_path / "runs"}', *arguments])
  try:
    return reproduce.main(Console(width=100))
  finally:
    flagsaver.restore_flag_values(kept, reproduce.FLAGS)


def files(folder):
  return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_what_is_left_behind(there, tmp_path, capsys):
  assert run(tmp_path, '--only=good,off') == 0  # a claim that does not hold is a result, not an error
  text = capsys.readouterr().out
  assert re.search(r'off +Claim of off & <others>\. +not reproduced', text)
  folder = tmp_path / 'runs/reproduce'
  assert {path.name for path in (folder / 'good').iterdir()} == {'measured.json'} | {f'good.{s}' for s in FIGURE_FILES}
  measured = read_json(folder / 'good/measured.json')
  assert measured['measured'] == {
    'line': [float(np.float32(1 / 3)), float(np.float32(2 / 3))], 'by_seed': [5, 6, 7, 8],
    'unbounded': None, 'count': 3,
  }  # fmt: skip
  assert measured['command'] == 'python reproduce.py --only=good'
  assert (measured['settings'], measured['seeds']) == ({'seeds': 4}, 4)
  assert {'device', 'layout', 'versions', 'code_revision', 'data_checksum', 'seconds'} <= set(measured)
  figure = read_json(folder / 'good/good.json')
  assert figure['drawn'] == [{
    'title': '', 'x': 'time (s)', 'y': 'length (m)', 'bars': [], 'areas': [], 'images': [],
    'lines': [{'name': 'the line', 'x': [0, 1], 'y': measured['measured']['line']}],
  }]  # fmt: skip
  assert {**figure, 'drawn': None} == {**{k: v for k, v in measured.items() if k != 'measured'}, 'drawn': None}


def test_the_page_is_one_file(there, tmp_path):
  run(tmp_path, '--only=good,off')
  page = (tmp_path / 'runs/reproduce/report.html').read_text()
  assert page.count('<img src="data:image/svg+xml;base64,') == page.count('<img') == 2
  for outside in ('http:', 'https:', '<script', '<link', '@import'):
    assert outside not in page
  for piece in (
    'Claim of good &amp; &lt;others&gt;.', 'Someone 1999', 'good: reproduced', 'off: not reproduced',
    'python reproduce.py --only=off', '1 reproduced; 1 not reproduced; 0 inconclusive', 'mean of 4 seeds',
  ):  # fmt: skip
    assert piece in page


def test_from_logs_measures_nothing_and_gives_the_same_bytes(there, tmp_path):
  run(tmp_path, '--only=good,off')
  before = files(tmp_path / 'runs/reproduce')
  for path in before:
    if path.name != 'measured.json':
      path.unlink()
  there['good'] = make('good', measure=broken)
  assert run(tmp_path, '--only=good,off', '--from_logs') == 0
  assert files(tmp_path / 'runs/reproduce') == before


def test_the_page_has_all_that_were_made_here(there, tmp_path):
  run(tmp_path, '--only=off')
  before = files(tmp_path / 'runs/reproduce/off')
  there['good'] = dataclasses.replace(there['good'], seconds=0.5)
  run(tmp_path, '--only=good')
  page = (tmp_path / 'runs/reproduce/report.html').read_text()
  assert re.findall('<h2 id="(.*?)"', page) == ['good', 'off'], 'the quickest first'
  assert page.count('<img src="data:image/svg+xml;base64,') == 2
  assert files(tmp_path / 'runs/reproduce/off') == before
  there['off'] = make('off', expected=(exactly('width', 'the width', 1.0),))
  run(tmp_path, '--only=good')
  page = (tmp_path / 'runs/reproduce/report.html').read_text()
  assert re.findall('<h2 id="(.*?)"', page) == ['good']
  assert 'off: ' in page
  assert 'has no &#39;width&#39;: make it with python reproduce.py --only=off' in page


def test_one_that_fails_or_is_missing_does_not_stop_the_others(there, tmp_path, capsys):
  assert run(tmp_path, '--only=fails,good') == 1
  output = capsys.readouterr()
  assert 'fails FAILED: RuntimeError: no luck' in output.out
  assert 'fails FAILED' in (tmp_path / 'runs/reproduce/report.html').read_text()
  assert run(tmp_path, '--only=off,good', '--from_logs') == 2
  error = capsys.readouterr().err.strip()
  assert error.count('\n') == 0
  assert 'off/measured.json: make it with python reproduce.py --only=off --workdir=' in error
  assert (tmp_path / 'runs/reproduce/good/good.png').exists()


@pytest.mark.parametrize(
  ('content', 'says'),
  [('{"settings": ', 'is damaged'), ('{"settings": {}}', "has no 'command'"), (None, "has no 'by_seed'")],
)
def test_a_record_cut_short_is_one_line(there, tmp_path, capsys, content, says):
  run(tmp_path, '--only=good')
  path = tmp_path / 'runs/reproduce/good/measured.json'
  if content is None:
    whole = read_json(path)
    del whole['measured']['by_seed'], whole['made_by']  # of an older version
    content = json.dumps(whole)
  path.write_text(content)
  capsys.readouterr()
  assert run(tmp_path, '--only=good', '--from_logs') == 2
  error = capsys.readouterr().err.strip()
  assert error.count('\n') == 0
  assert says in error


def test_a_measured_number_that_changed_is_damage(there, tmp_path, capsys):
  run(tmp_path, '--only=good')
  path = tmp_path / 'runs/reproduce/good/measured.json'
  path.write_text(path.read_text().replace('"count": 3', '"count": 4'))
  capsys.readouterr()
  assert run(tmp_path, '--only=good', '--from_logs') == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1
  assert 'measured.json is damaged (its content does not match its checksum): make it with python reproduce.py' in error
  assert run(tmp_path, '--only=good') == 0  # which makes it again
  assert run(tmp_path, '--only=good', '--from_logs') == 0


def test_numbers_that_other_code_made_are_said_to_be(there, tmp_path, capsys, monkeypatch):
  run(tmp_path, '--only=good')
  page = tmp_path / 'runs/reproduce/report.html'
  says = 'good: made by other code than this checkout ('
  assert run(tmp_path, '--only=good', '--from_logs') == 0
  assert says not in capsys.readouterr().out + page.read_text()
  with monkeypatch.context() as patch:
    patch.setattr(record, 'DIGEST', '7' * 64)
    assert run(tmp_path, '--only=good', '--from_logs') == 0
    assert capsys.readouterr().out.count(says) == 1
    assert page.read_text().count(says) == 1
    run(tmp_path, '--only=off')  # beside which the other stays on the page
    assert page.read_text().count(says) == 1


def test_nothing_to_redraw_is_one_message(there, tmp_path):
  with pytest.raises(ConfigError, match=r'reproduce holds nothing to redraw: run python reproduce\.py'):
    run(tmp_path, '--from_logs')
  assert not (tmp_path / 'runs').exists()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('argument', 'says'),
  [
    ('--only=wroked_example', "unknown reproduction 'wroked_example': did you mean 'worked_example'?"),
    ('--onyl=context', "unknown flag --onyl: did you mean 'only'?"),
    ('--scale=huge', 'should be one of <small|full>'),
    ('context', "what is 'context'? Every argument is a flag"),
  ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, argument, says):
  command = [sys.executable, str(PROJECT / 'reproduce.py'), argument, f'--workdir={tmp_path / "runs"}']
  done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
  assert done.returncode == 2
  assert done.stderr.count('\n') == 1
  assert says in done.stderr
  assert not (tmp_path / 'runs').exists()


def test_without_names_what_fits_is_run_and_the_rest_is_named(there, tmp_path, capsys):
  there['fails'] = make('fails')
  run(tmp_path)
  text = capsys.readouterr().out
  assert 'left out: long, about 33 min: python reproduce.py --only=long' in text
  assert not (tmp_path / 'runs/reproduce/long').exists()
  assert (tmp_path / 'runs/reproduce/off').exists()


def test_full_scale_runs_all_at_its_sizes(there, tmp_path, capsys):
  run(tmp_path, '--scale=full')
  measured = read_json(tmp_path / 'runs/reproduce/long/measured.json')
  assert measured['settings'] == {'seeds': 8}
  assert measured['command'].endswith('--only=long --scale=full')


def test_check_names_what_moved(there, tmp_path, capsys):
  assert run(tmp_path, '--only=good', '--check') == 2
  assert 'nothing in experiments/expected to check against' in capsys.readouterr().err
  assert run(tmp_path, '--only=good', '--update_expected') == 0
  kept = read_json(tmp_path / 'expected/good.json')
  assert kept['verdict'] == 'reproduced'
  assert kept['values']['by_seed'] == {'says': 'by seed', 'value': 6.5, 'tolerance': 0.0065}
  assert kept['machine'].endswith(record.machine().partition(', ')[2])
  assert run(tmp_path, '--check') == 0  # all that is kept, and nothing else
  assert 'nothing moved' in capsys.readouterr().out
  there['good'] = make('good', offset=0.006)
  assert run(tmp_path, '--only=good', '--check') == 1
  text = capsys.readouterr().out
  assert 'good moved: line (the line): (0.3333, 0.6667) then, (0.3393, 0.6727) now' in text
  assert 'good moved: reproduced then, not reproduced now' in text
  assert 'by_seed' not in text


@pytest.mark.parametrize('value', [0.01, 2.0])
def test_what_runs_may_drift_by_is_not_a_share_of_what_they_came_to(value):
  trained = dataclasses.replace(make('trained', measure=None, read=broken), drift=0.02)
  finding = SimpleNamespace(value=value)
  assert record._tolerance(trained, finding) == 0.02
  assert record._tolerance(dataclasses.replace(trained, read=None), finding) == pytest.approx(0.02 * value)


def test_a_check_trains_nothing_that_is_not_named(there, tmp_path, capsys):
  run(tmp_path, '--only=good,off', '--update_expected')
  there['off'] = make('off', measure=None, read=broken)
  assert run(tmp_path, '--check') == 0
  text = capsys.readouterr().out
  assert 'nothing moved (good)' in text
  assert 'left out: off' in text


def test_full_scale_has_nothing_to_be_checked_against(there, tmp_path):
  with pytest.raises(ConfigError, match='leave --scale=full out'):
    run(tmp_path, '--check', '--scale=full')


def test_the_table_fits_a_pipe(there, tmp_path):
  made = make('good')
  content = record.make_record(made, 'small', made.measure(4), 1.0)
  shown = gallery.draw(made, content, tmp_path)
  for view in (gallery.details(shown), gallery.table([shown])):
    output = io.StringIO()
    Console(file=output, width=80).print(view)
    assert max(map(len, output.getvalue().splitlines())) <= 80
    assert '…' not in output.getvalue()


def test_bars_and_labels_beside_the_axes_are_told_apart():
  figure = figure_style.new_figure(2)
  axes = figure.add_subplot()
  axes.bar([1, 2], [3.0, 4.0])
  axes.fill([0, 1, 1], [0, 0, 1])
  figure_style.label_lines(figure, axes, [figure_style.LineLabel(3.0, 'x', 'black')])
  [panel] = figure_data.drawn_numbers(figure)
  assert panel['bars'] == [{'x': 1.0, 'height': 3.0}, {'x': 2.0, 'height': 4.0}]
  assert panel['areas'] == [[[0, 0], [1, 0], [1, 1], [0, 0]]]
  assert panel['lines'] == []


def test_a_full_disk_is_one_line_and_what_was_measured_is_told(there, tmp_path, capsys, monkeypatch):
  def full(*arguments, **options):
    raise OSError(errno.ENOSPC, 'No space left on device', str(tmp_path / 'runs/reproduce/good/measured.json'))

  monkeypatch.setattr(command, 'write_sealed', full)
  assert run(tmp_path, '--only=good,off') == 1
  output = capsys.readouterr()
  assert 'Traceback' not in output.out + output.err
  assert re.search(r'by seed +3 or more +6\.5', output.out)
  assert re.search(r'good +Claim of good & <others>\. +reproduced', output.out)
  (line,) = [line for line in output.out.splitlines() if line.startswith('good FAILED')]
  assert 'measured.json could not be written (No space left on device)' in line


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(there, tmp_path):
  (tmp_path / 'runs').write_text('a file')
  with pytest.raises(ConfigError, match='runs is a file, and a folder is needed there'):
    run(tmp_path, '--only=fails')


def test_the_list_runs_nothing(there, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(registry, 'unreadable_files', lambda: {'x': 'experiments/x.py, line 3: not Python'})
  assert run(tmp_path, '--list') == 0
  output = capsys.readouterr().out
  assert re.search(r'long +33 min +Claim of long', output)
  assert output.splitlines()[-1] == 'cannot be used: experiments/x.py, line 3: not Python'
  assert not (tmp_path / 'runs').exists()
