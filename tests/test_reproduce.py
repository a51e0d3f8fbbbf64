"""reproduce.py with fake reproductions: the command, the record and the report."""

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
from lab.reproduce import command, expected_values, record, reproduction_report
from lab.reproduce.plotted_data import plotted_data
from training.code_version import PROJECT
from training.config import ConfigError
from training.files import read_json

FIGURE_FILES = {'json', 'pdf', 'png', 'svg'}
ALL_FORMATS = figure_style.FORMATS


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
def reproductions(monkeypatch, tmp_path):
  """Reproductions by name: `good` holds, `off` does not, `fails` raises, `long` exceeds the default time budget."""
  by_name = {
    'good': make('good'), 'off': make('off', offset=1.0), 'fails': make('fails', measure=broken),
    'long': make('long', seconds=2000),
  }  # fmt: skip
  monkeypatch.setattr(registry, 'reproduction_names', lambda: sorted(by_name))
  monkeypatch.setattr(registry, 'find_reproduction', by_name.__getitem__)
  monkeypatch.setattr(expected_values, 'FOLDER', tmp_path / 'expected')
  monkeypatch.setattr(figure_style, 'FORMATS', {'svg': ALL_FORMATS['svg']})
  return by_name


def run(tmp_path, *arguments):
  saved = flagsaver.save_flag_values(reproduce.FLAGS)
  reproduce.FLAGS(['reproduce.py', f'--workdir={tmp_path / "runs"}', *arguments])
  try:
    return reproduce.main(Console(width=100))
  finally:
    flagsaver.restore_flag_values(saved, reproduce.FLAGS)


def files(folder):
  return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_a_reproduction_writes_its_record_and_figure(reproductions, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(figure_style, 'FORMATS', ALL_FORMATS)
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


def test_the_report_is_a_single_file(reproductions, tmp_path):
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


def test_from_logs_measures_nothing_and_writes_the_same_bytes(reproductions, tmp_path, monkeypatch):
  monkeypatch.setattr(figure_style, 'FORMATS', ALL_FORMATS)
  run(tmp_path, '--only=good,off')
  before = files(tmp_path / 'runs/reproduce')
  for path in before:
    if path.name != 'measured.json':
      path.unlink()
  reproductions['good'] = make('good', measure=broken)
  assert run(tmp_path, '--only=good,off', '--from_logs') == 0
  assert files(tmp_path / 'runs/reproduce') == before


def test_the_report_includes_earlier_results(reproductions, tmp_path):
  run(tmp_path, '--only=off')
  before = files(tmp_path / 'runs/reproduce/off')
  reproductions['good'] = dataclasses.replace(reproductions['good'], seconds=0.5)
  run(tmp_path, '--only=good')
  page = (tmp_path / 'runs/reproduce/report.html').read_text()
  assert re.findall('<h2 id="(.*?)"', page) == ['good', 'off'], 'the fastest first'
  assert page.count('<img src="data:image/svg+xml;base64,') == 2
  assert files(tmp_path / 'runs/reproduce/off') == before
  reproductions['off'] = make('off', expected=(exactly('width', 'the width', 1.0),))
  run(tmp_path, '--only=good')
  page = (tmp_path / 'runs/reproduce/report.html').read_text()
  assert re.findall('<h2 id="(.*?)"', page) == ['good']
  assert 'off: ' in page
  assert 'has no &#39;width&#39;: measure it with python reproduce.py --only=off' in page


def test_a_failed_or_missing_reproduction_does_not_stop_the_others(reproductions, tmp_path, capsys):
  assert run(tmp_path, '--only=fails,good') == 1
  output = capsys.readouterr()
  assert 'fails FAILED: RuntimeError: no luck' in output.out
  assert 'fails FAILED' in (tmp_path / 'runs/reproduce/report.html').read_text()
  assert run(tmp_path, '--only=off,good', '--from_logs') == 2
  error = capsys.readouterr().err.strip()
  assert error.count('\n') == 0
  assert 'off/measured.json does not exist: measure it with python reproduce.py --only=off --workdir=' in error
  assert (tmp_path / 'runs/reproduce/good/good.svg').exists()


@pytest.mark.parametrize(
  ('content', 'message'),
  [('{"settings": ', 'is damaged'), ('{"settings": {}}', "has no 'command'"), (None, "has no 'by_seed'")],
)
def test_a_truncated_record_is_refused_in_one_line(reproductions, tmp_path, capsys, content, message):
  run(tmp_path, '--only=good')
  path = tmp_path / 'runs/reproduce/good/measured.json'
  if content is None:
    record_content = read_json(path)
    del record_content['measured']['by_seed'], record_content['made_by']  # as older versions wrote it
    content = json.dumps(record_content)
  path.write_text(content)
  capsys.readouterr()
  assert run(tmp_path, '--only=good', '--from_logs') == 2
  error = capsys.readouterr().err.strip()
  assert error.count('\n') == 0
  assert message in error


def test_an_edited_record_is_refused_as_damaged(reproductions, tmp_path, capsys):
  run(tmp_path, '--only=good')
  path = tmp_path / 'runs/reproduce/good/measured.json'
  path.write_text(path.read_text().replace('"count": 3', '"count": 4'))
  capsys.readouterr()
  assert run(tmp_path, '--only=good', '--from_logs') == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1
  assert (
    'measured.json is damaged (its content does not match its checksum): measure it with python reproduce.py' in error
  )
  assert run(tmp_path, '--only=good') == 0  # measures it again
  assert run(tmp_path, '--only=good', '--from_logs') == 0


def test_a_record_measured_by_other_code_is_noted(reproductions, tmp_path, capsys, monkeypatch):
  run(tmp_path, '--only=good')
  page = tmp_path / 'runs/reproduce/report.html'
  note = 'good: measured by other code than this checkout ('
  assert run(tmp_path, '--only=good', '--from_logs') == 0
  assert note not in capsys.readouterr().out + page.read_text()
  with monkeypatch.context() as patch:
    patch.setattr(record, 'DIGEST', '7' * 64)
    assert run(tmp_path, '--only=good', '--from_logs') == 0
    assert capsys.readouterr().out.count(note) == 1
    assert page.read_text().count(note) == 1
    run(tmp_path, '--only=off')  # `good` stays in the report
    assert page.read_text().count(note) == 1


def test_from_logs_without_results_is_refused(reproductions, tmp_path):
  with pytest.raises(ConfigError, match=r'reproduce has no results to redraw: run python reproduce\.py'):
    run(tmp_path, '--from_logs')
  assert not (tmp_path / 'runs').exists()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('--only=wroked_example', "unknown reproduction 'wroked_example': did you mean 'worked_example'?"),
    ('--onyl=context', "unknown flag --onyl: did you mean 'only'?"),
    ('--scale=huge', 'should be one of <small|full>'),
    ('context', "unexpected argument 'context': every argument must be a flag"),
  ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, argument, message):
  command = [sys.executable, str(PROJECT / 'reproduce.py'), argument, f'--workdir={tmp_path / "runs"}']
  done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
  assert done.returncode == 2
  assert done.stderr.count('\n') == 1
  assert message in done.stderr
  assert not (tmp_path / 'runs').exists()


def test_by_default_slow_reproductions_are_left_out_and_listed(reproductions, tmp_path, capsys):
  reproductions['fails'] = make('fails')
  run(tmp_path)
  text = capsys.readouterr().out
  assert 'left out: long, about 33 min: python reproduce.py --only=long' in text
  assert not (tmp_path / 'runs/reproduce/long').exists()
  assert (tmp_path / 'runs/reproduce/off').exists()


def test_full_scale_runs_every_reproduction_with_full_settings(reproductions, tmp_path, capsys):
  run(tmp_path, '--scale=full')
  measured = read_json(tmp_path / 'runs/reproduce/long/measured.json')
  assert measured['settings'] == {'seeds': 8}
  assert measured['command'].endswith('--only=long --scale=full')


def test_check_prints_what_changed(reproductions, tmp_path, capsys):
  assert run(tmp_path, '--only=good', '--check') == 2
  assert 'experiments/expected has no values to check against' in capsys.readouterr().err
  assert run(tmp_path, '--only=good', '--update_expected') == 0
  committed = read_json(tmp_path / 'expected/good.json')
  assert committed['verdict'] == 'reproduced'
  assert committed['values']['by_seed'] == {'says': 'by seed', 'value': 6.5, 'tolerance': 0.0065}
  assert committed['machine'].endswith(expected_values.machine().partition(', ')[2])
  assert run(tmp_path, '--check') == 0  # selects those with committed values
  assert 'nothing changed' in capsys.readouterr().out
  reproductions['good'] = make('good', offset=0.006)
  assert run(tmp_path, '--only=good', '--check') == 1
  text = capsys.readouterr().out
  assert 'good changed: line (the line): was (0.3333, 0.6667), is now (0.3393, 0.6727)' in text
  assert 'good changed: verdict was reproduced, is now not reproduced' in text
  assert 'by_seed' not in text


@pytest.mark.parametrize('value', [0.01, 2.0])
def test_the_tolerance_is_absolute_for_runs_and_relative_otherwise(value):
  trained = dataclasses.replace(make('trained', measure=None, read=broken), drift=0.02)
  comparison = SimpleNamespace(value=value)
  assert expected_values._tolerance(trained, comparison) == 0.02
  assert expected_values._tolerance(dataclasses.replace(trained, read=None), comparison) == pytest.approx(0.02 * value)


def test_check_does_not_train_by_default(reproductions, tmp_path, capsys):
  run(tmp_path, '--only=good,off', '--update_expected')
  reproductions['off'] = make('off', measure=None, read=broken)
  assert run(tmp_path, '--check') == 0
  text = capsys.readouterr().out
  assert 'nothing changed (good)' in text
  assert 'left out: off' in text


def test_check_at_full_scale_is_refused(reproductions, tmp_path):
  with pytest.raises(ConfigError, match='omit --scale=full'):
    run(tmp_path, '--check', '--scale=full')


def test_tables_fit_80_columns(tmp_path):
  made = make('good')
  content = record.make_record(made, 'small', made.measure(4), 1.0)
  shown = reproduction_report.draw(made, content, tmp_path)
  for view in (reproduction_report.detail_table(shown), reproduction_report.summary_table([shown])):
    output = io.StringIO()
    Console(file=output, width=80).print(view)
    assert max(map(len, output.getvalue().splitlines())) <= 80
    assert '…' not in output.getvalue()


def test_plotted_data_has_bars_but_no_labels_outside_the_axes():
  figure = figure_style.new_figure(2)
  axes = figure.add_subplot()
  axes.bar([1, 2], [3.0, 4.0])
  axes.fill([0, 1, 1], [0, 0, 1])
  figure_style.label_lines(figure, axes, [figure_style.LineLabel(3.0, 'x', 'black')])
  [panel] = plotted_data(figure)
  assert panel['bars'] == [{'x': 1.0, 'height': 3.0}, {'x': 2.0, 'height': 4.0}]
  assert panel['areas'] == [[[0, 0], [1, 0], [1, 1], [0, 0]]]
  assert panel['lines'] == []


def test_on_a_full_disk_the_measured_values_are_still_printed(reproductions, tmp_path, capsys, monkeypatch):
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


def test_an_unwritable_workdir_is_refused_before_measuring(reproductions, tmp_path):
  (tmp_path / 'runs').write_text('a file')
  with pytest.raises(ConfigError, match='runs is a file, where a folder is needed'):
    run(tmp_path, '--only=fails')


def test_list_runs_nothing(reproductions, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(registry, 'unreadable_files', lambda: ['experiments/x.py, line 3: not Python'])
  assert run(tmp_path, '--list') == 0
  output = capsys.readouterr().out
  assert re.search(r'long +33 min +Claim of long', output)
  assert output.splitlines()[-1] == 'cannot be used: experiments/x.py, line 3: not Python'
  assert not (tmp_path / 'runs').exists()
