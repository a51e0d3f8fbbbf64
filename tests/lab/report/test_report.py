"""The report of an experiment: summary, table and page."""

import base64
import json
import re

import fake_runs
import numpy as np
import pytest
from summaries import load_summary, rendered_table

from lab.analysis import find_results
from lab.core.experiment import Experiment
from lab.report import report

COMMAND = 'python train.py --experiment=block --seeds=0,1,2,3,4'


@pytest.fixture(scope='module')
def full(tmp_path_factory):
  """The report of runs with exact losses: relu is worse by 0.06 to 0.14, post_norm better by the same."""
  directory = tmp_path_factory.mktemp('runs') / 'block'
  steps = (0.06, 0.08, 0.10, 0.12, 0.14)
  finals = {('baseline', seed): 3.0 + 0.01 * seed for seed in range(5)}
  finals |= {('relu', seed): finals['baseline', seed] + steps[seed] for seed in range(5)}
  finals |= {('post_norm', seed): finals['baseline', seed] - steps[seed] for seed in range(5)}
  fake_runs.write_experiment(directory, finals=finals)
  _, paths = report.write(fake_runs.BLOCK, directory, COMMAND)
  return directory, paths, json.loads((directory / 'summary.json').read_text())


def test_write_creates_the_documented_files(full):
  directory, paths, _ = full
  names = {path.relative_to(directory).as_posix() for path in paths}
  figures = ('final_loss_by_variant', 'loss_curves', 'stream_gradient_by_layer')
  tables = {f'verdicts.{suffix}' for suffix in ('csv', 'md', 'tex')}
  assert names == {'results.csv', 'summary.json', 'report.html'} | tables | {
    f'figures/{figure}.{suffix}' for figure in figures for suffix in ('png', 'pdf', 'svg')
  }
  assert all(path.stat().st_size > 500 for path in paths)
  assert not list(directory.glob('**/.*'))
  assert paths[-1].name == 'report.html'


def test_the_summary_has_the_numbers(full):
  _, _, summary = full
  relu = summary['variants']['relu']
  comparison = relu['comparison']
  assert relu['mean'] == pytest.approx(3.12)
  assert relu['seeds']['4'] == pytest.approx(3.18)
  assert comparison['differences']['0'] == pytest.approx(0.06)
  assert (comparison['low'], comparison['high']) == pytest.approx((0.0607, 0.1393), abs=1e-4)  # by the t table
  assert comparison['verdict'] == 'worse'
  p = [entry['comparison']['p'] for entry in summary['variants'].values() if entry['comparison']]
  # post_norm and relu mirror each other; no_residual has by far the smallest of the three
  assert comparison['p_holm'] == pytest.approx(2 * comparison['p'])
  assert summary['variants']['no_residual']['comparison']['p_holm'] == pytest.approx(3 * min(p))
  assert relu['runs'] == {'completed': 5, 'failed_to_learn': 0, 'diverged': 0}
  assert relu['parameters_ratio'] == pytest.approx(624_192 / 624_960)
  assert relu['changes'] == {'model.feed_forward': 'relu'}
  assert summary['measure'] == {
    'column': 'val_bits_per_byte',
    'unit': 'bits per byte',
    'margin': 0.02,
    'split': 'validation',
  }
  assert summary['yardsticks'] == fake_runs.NGRAM_BASELINES
  assert summary['versions'] == {'flax': '0.12.0', 'jax': '0.10.2', 'python': '3.12.3'}
  assert summary['command'] == COMMAND


def test_verdicts_state_their_conditions(full):
  _, _, summary = full
  where = 'at learning rate 4e-3 (shared), warm-up 20 steps, initialisation fan_in with depth scale'
  sentences = {name: entry['sentence'] for name, entry in summary['variants'].items()}
  assert sentences['relu'] == f'worse by 0.100 [0.061, 0.139] bits per byte {where}'
  assert sentences['post_norm'] == f'better by 0.100 [0.061, 0.139] bits per byte {where}'
  assert sentences['no_residual'].startswith(f'unstable (0 of 5 learned): 5 failed to learn {where}; +1.4')
  assert sentences['no_residual'].endswith('over the 5 pairs in which both runs reached the last step')


def test_the_token_multiplier_follows_from_the_mean_curves(full):
  directory, _, summary = full
  found = summary['variants']['relu']['token_multiplier']
  curves = {}
  for variant in ('baseline', 'relu'):
    seeds = []
    for seed in range(5):
      lines = map(json.loads, (directory / variant / f'seed_{seed}/metrics.jsonl').read_text().splitlines())
      seeds.append([line['validation/bits_per_byte'] for line in lines if 'validation/bits_per_byte' in line])
    curves[variant] = np.mean(seeds, axis=0)
  fine = np.linspace(15, 300, 28501)
  reached = np.interp(fine, np.arange(15, 301, 15), curves['baseline']) <= curves['relu'][-1]
  after_last_miss = fine[np.flatnonzero(~reached)[-1] + 1]
  assert found['faster'] == 'baseline'
  assert found['share'] == pytest.approx(after_last_miss / 300, abs=1e-4)
  assert summary['variants']['no_residual']['token_multiplier'] is None


def test_held_equal_lists_what_the_runs_share(full):
  _, _, summary = full
  assert 'tokens (307,200)' in summary['held_equal']
  assert 'learning rate (4e-3)' in summary['held_equal']
  assert any(text.startswith('parameters (0.999 to 1.000 times') for text in summary['not_held_equal'])


@pytest.mark.parametrize('width', [100, 80])
def test_the_table_fits_its_width_without_escape_codes(full, width):
  _, _, summary = full
  text = rendered_table(summary, width)
  assert max(map(len, text.splitlines())) <= width
  assert '\x1b' not in text
  for piece in (
    'baseline',
    '3.120',
    '+0.100',
    '624,192',
    '3,932,160',
    'unstable',
    '0/5',
    'learning rate 4e-3 (shared)',
  ):
    assert piece in ' '.join(text.split())


@pytest.mark.parametrize('width', [70, 60, 48])
def test_a_narrow_table_omits_sizes_and_cuts_nothing(full, width):
  _, _, summary = full
  text = rendered_table(summary, width)
  assert max(map(len, text.splitlines())) <= width
  assert '…' not in text
  assert '624,192' not in text
  for piece in ('baseline', '3.120', '+0.100', 'unstable', 'no_residual' if width == 70 else ''):
    assert piece in text


def test_the_table_does_not_fold_intervals_at_100_columns(full):
  _, _, summary = full
  text = rendered_table(summary)
  assert '[+0.061, +0.139]' in text
  assert '3.06 3.09 3.12' in text


def test_the_table_says_how_runs_failed(tmp_path):
  statuses = {('baseline', 1): 'diverged', ('relu', 0): 'failed_to_learn', ('relu', 3): 'diverged'}
  directory = fake_runs.write_experiment(tmp_path / 'block', statuses=statuses, points=3)
  summary = load_summary(fake_runs.BLOCK, directory)
  learned = [cell.plain for cell in report.verdict_table(summary).columns[1].cells]
  assert learned == ['4/5\n1 diverged', '5/5', '3/5\n1 failed to learn\n1 diverged', '0/5\n5 failed to learn']
  for width in (100, 80, 60):
    text = rendered_table(summary, width)
    assert max(map(len, text.splitlines())) <= width
    assert '…' not in text


def test_the_page_is_one_self_contained_file(full):
  directory, _, summary = full
  page = (directory / 'report.html').read_text()
  images = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)"', page)
  assert len(images) == page.count('<img') == 3
  for name, (image, alt) in zip(
    ('final_loss_by_variant', 'loss_curves', 'stream_gradient_by_layer'), images, strict=True
  ):
    assert base64.b64decode(image) == (directory / f'figures/{name}.svg').read_bytes()
    assert len(alt) > 40
  for external in ('http:', 'https:', '<script', '<link', 'src="figures', '@import'):
    assert external not in page
  for piece in (
    COMMAND, fake_runs.BLOCK.question, summary['variants']['relu']['sentence'], 'model.feed_forward=relu',
    'num_layers=12', 'b2c26b8719b188f5', 'jax 0.10.2', summary['interval']['does_not_cover'],
  ):  # fmt: skip
    assert piece in page


@pytest.mark.slow
def test_writing_again_gives_the_same_bytes(full):
  directory, paths, _ = full
  before = {path: path.read_bytes() for path in paths}
  report.write(fake_runs.BLOCK, directory, COMMAND)
  assert {path: path.read_bytes() for path in paths} == before


def test_an_outdated_figure_is_removed(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', points=2, inspect=False)
  (directory / 'figures').mkdir()
  old, own = directory / 'figures/stream_gradient_by_layer.svg', directory / 'figures/mine.svg'
  for path in (old, own):
    path.write_text('')
  report.write(fake_runs.BLOCK, directory, 'python train.py')
  assert (old.exists(), own.exists()) == (False, True)


def test_write_returns_the_summary_and_reads_each_result_once(full, monkeypatch):
  directory, paths, summary = full
  read, read_result = [], find_results.read_result
  monkeypatch.setattr(find_results, 'read_result', lambda path: read.append(path) or read_result(path))
  assert report.write(fake_runs.BLOCK, directory, COMMAND) == (summary, paths)
  assert len(read) == len(set(read)) == 20


def test_the_page_escapes_user_input(tmp_path):
  experiment = Experiment('Is a < b & "c"?', {'baseline': {}, 'relu': {'model.feed_forward': 'relu'}}, name='x')
  fake_runs.write_experiment(tmp_path / 'x', experiment, levels={'baseline': 2.9, 'relu': 3.0}, inspect=False, points=3)
  report.write(experiment, tmp_path / 'x', 'python train.py --name="<b>"')
  page = (tmp_path / 'x/report.html').read_text()
  assert 'Is a &lt; b &amp; &#34;c&#34;?' in page
  assert '"<b>"' not in page
