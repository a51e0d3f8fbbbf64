"""The summary, the table and the page."""

import base64
import csv
import io
import json
import re

import fake_runs
import numpy as np
import pytest
from rich.console import Console

from experiments import report, results, runs
from experiments.experiment import Experiment
from experiments.summary import summarise
from training.config import ConfigError

COMMAND = 'python train.py --experiment=block --seeds=0,1,2,3,4'
COPY = Experiment(
  'Can it copy?',
  {'baseline': {}, 'post': {'model.norm_placement': 'post'}, 'deep': {'model.norm_placement': 'deepnorm'}},
  name='copy',
  seeds=(0, 1, 2),
)


def findings(experiment, directory):
  return summarise(runs.load(experiment, directory))


def printed(summary, width=100):
  file = io.StringIO()
  Console(file=file, width=width).print(report.table(summary))
  return file.getvalue()


@pytest.fixture(scope='module')
def full(tmp_path_factory):
  """The default experiment with exact losses: relu worse by .06 to .14, post_norm the other way, one run diverged."""
  directory = tmp_path_factory.mktemp('runs') / 'block'
  steps = (0.06, 0.08, 0.10, 0.12, 0.14)
  finals = {('baseline', seed): 3.0 + 0.01 * seed for seed in range(5)}
  finals |= {('relu', seed): finals['baseline', seed] + steps[seed] for seed in range(5)}
  finals |= {('post_norm', seed): finals['baseline', seed] - steps[seed] for seed in range(5)}
  fake_runs.write_experiment(directory, finals=finals)
  _, paths = report.write(fake_runs.BLOCK, directory, COMMAND)
  return directory, paths, json.loads((directory / 'summary.json').read_text())


def test_write_leaves_the_agreed_files(full):
  directory, paths, _ = full
  names = {path.relative_to(directory).as_posix() for path in paths}
  figures = ('final_loss_by_variant', 'loss_curves', 'stream_gradient_by_layer')
  assert names == {'results.csv', 'summary.json', 'report.html'} | {
    f'figures/{figure}.{suffix}' for figure in figures for suffix in ('png', 'pdf', 'svg')
  }
  assert all(path.stat().st_size > 500 for path in paths)
  assert not list(directory.glob('**/.*'))
  assert paths[-1].name == 'report.html'


def test_summary_holds_the_numbers(full):
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
  assert summary['yardsticks'] == fake_runs.YARDSTICKS
  assert summary['versions'] == {'flax': '0.12.0', 'jax': '0.10.2', 'python': '3.12.3'}
  assert summary['command'] == COMMAND


def test_verdicts_name_what_they_hold_for(full):
  _, _, summary = full
  where = 'at learning rate 4e-3 (shared), warm-up 20, fan_in with depth scale'
  sentences = {name: entry['sentence'] for name, entry in summary['variants'].items()}
  assert sentences['relu'] == f'worse by 0.100 [0.061, 0.139] bits per byte {where}'
  assert sentences['post_norm'] == f'better by 0.100 [0.061, 0.139] bits per byte {where}'
  assert sentences['no_residual'].startswith(f'unstable (0 of 5 learned): 5 failed to learn {where}; +1.4')
  assert sentences['no_residual'].endswith('over the 5 pairs of runs that both ended')


def test_token_multiplier_is_read_off_the_mean_curves(full):
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


def test_held_equal_is_what_the_runs_share(full):
  _, _, summary = full
  assert 'tokens (307,200)' in summary['held_equal']
  assert 'learning rate (4e-3)' in summary['held_equal']
  assert any(text.startswith('parameters (0.999 to 1.000 times') for text in summary['not_held_equal'])


@pytest.mark.parametrize('width', [100, 80])
def test_table_fits_a_terminal_and_a_pipe(full, width):
  _, _, summary = full
  text = printed(summary, width)
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


def test_table_keeps_rows_whole_at_100_columns(full):
  _, _, summary = full
  text = printed(summary)
  assert '[+0.061, +0.139]' in text
  assert '3.06 3.09 3.12' in text


def test_table_says_how_runs_failed(tmp_path):
  statuses = {('baseline', 1): 'diverged', ('relu', 0): 'failed_to_learn', ('relu', 3): 'diverged'}
  directory = fake_runs.write_experiment(tmp_path / 'block', statuses=statuses, points=3)
  summary = findings(fake_runs.BLOCK, directory)
  learned = [cell.plain for cell in report.table(summary).columns[1].cells]
  assert learned == ['4/5\n1 diverged', '5/5', '3/5\n1 failed to learn\n1 diverged', '0/5\n5 failed to learn']
  for width in (100, 80):
    text = printed(summary, width)
    assert max(map(len, text.splitlines())) <= width
    assert '…' not in text


def test_page_is_one_file_with_all_in_it(full):
  directory, _, summary = full
  page = (directory / 'report.html').read_text()
  images = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)"', page)
  assert len(images) == page.count('<img') == 3
  for name, (image, alt) in zip(
    ('final_loss_by_variant', 'loss_curves', 'stream_gradient_by_layer'), images, strict=True
  ):
    assert base64.b64decode(image) == (directory / f'figures/{name}.svg').read_bytes()
    assert len(alt) > 40
  for outside in ('http:', 'https:', '<script', '<link', 'src="figures', '@import'):
    assert outside not in page
  for piece in (
    COMMAND, fake_runs.BLOCK.question, summary['variants']['relu']['sentence'], 'model.feed_forward=relu',
    'num_layers=12', 'b2c26b8719b188f5', 'jax 0.10.2', summary['interval']['does_not_cover'],
  ):  # fmt: skip
    assert piece in page


def test_writing_again_changes_nothing(full):
  directory, paths, _ = full
  before = {path: path.read_bytes() for path in paths}
  report.write(fake_runs.BLOCK, directory, COMMAND)
  assert {path: path.read_bytes() for path in paths} == before


def test_write_returns_the_summary_and_reads_each_run_once(full, monkeypatch):
  directory, paths, summary = full
  read, read_json = [], results.read_json
  monkeypatch.setattr(results, 'read_json', lambda path: read.append(path) or read_json(path))
  assert report.write(fake_runs.BLOCK, directory, COMMAND) == (summary, paths)
  assert len(read) == len(set(read)) == 20


def test_page_escapes_what_a_user_typed(tmp_path):
  experiment = Experiment('Is a < b & "c"?', {'baseline': {}, 'relu': {'model.feed_forward': 'relu'}}, name='x')
  fake_runs.write_experiment(tmp_path / 'x', experiment, levels={'baseline': 2.9, 'relu': 3.0}, inspect=False, points=3)
  report.write(experiment, tmp_path / 'x', 'python train.py --name="<b>"')
  page = (tmp_path / 'x/report.html').read_text()
  assert 'Is a &lt; b &amp; &#34;c&#34;?' in page
  assert '"<b>"' not in page


PARTIAL = {
  'no baseline': (
    {'levels': {'relu': 3.0, 'post_norm': 2.8}},
    ['baseline, no_residual: no finished run', 'Nothing to compare'],
  ),
  'baseline alone': (
    {'levels': {'baseline': 2.9}},
    ['post_norm, relu, no_residual: no finished run', 'only the baseline has finished runs'],
  ),
  'all diverged': (
    {
      'levels': {'baseline': 2.9, 'post_norm': 2.8},
      'statuses': {('post_norm', k): 'diverged' for k in range(5)},
    },
    ['unstable (0 of 5 learned): 5 diverged at learning rate 4e-3', 'no pair of runs ended in both'],
  ),
  'everything diverged': (
    {
      'levels': {'baseline': 2.9, 'post_norm': 2.8},
      'statuses': {(name, k): 'diverged' for name in ('baseline', 'post_norm') for k in range(5)},
      'yardsticks': {},
    },
    ['unstable (0 of 5 learned; baseline: 0 of 5 learned)'],
  ),
  'no inspection': ({'levels': {'baseline': 2.9, 'relu': 3.0}, 'inspect': False}, ['inspect.level=off']),
}


@pytest.mark.parametrize('case', PARTIAL)
def test_partial_experiments_say_what_is_missing(tmp_path, case):
  options, pieces = PARTIAL[case]
  directory = fake_runs.write_experiment(tmp_path / 'block', points=3, **options)
  report.write(fake_runs.BLOCK, directory, COMMAND)
  text = (directory / 'summary.json').read_text()
  assert not re.search('NaN|Infinity', text)
  page = (directory / 'report.html').read_text()
  for piece in pieces:
    assert piece in page
  assert 'does not train' not in page
  assert max(map(len, printed(json.loads(text)).splitlines())) <= 100


def test_missing_seeds_leave_the_pairs_there_are(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', levels={'baseline': 2.9, 'relu': 3.0}, points=3)
  for seed in (1, 3, 4):
    (directory / f'baseline/seed_{seed}/result.json').unlink()
  (directory / 'relu/seed_4/metrics.jsonl').unlink()
  summary = findings(fake_runs.BLOCK, directory)
  assert list(summary['variants']['relu']['comparison']['differences']) == ['0', '2']
  assert 'baseline: no finished run of seeds 1, 3, 4' in summary['notes']
  assert any('relu/seed_4/metrics.jsonl' in note for note in summary['notes'])
  (directory / 'baseline/seed_2/result.json').unlink()
  sentence = findings(fake_runs.BLOCK, directory)['variants']['relu']['sentence']
  assert sentence.startswith('inconclusive (one seed): +0.')
  assert 'an interval needs two seeds' in sentence


def test_what_all_variants_lack_is_said_once(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', levels={'baseline': 2.9, 'relu': 3.0}, points=3)
  for seed in (2, 3, 4):
    (directory / f'baseline/seed_{seed}/result.json').unlink()
    (directory / f'relu/seed_{seed}/result.json').unlink()
  absent = 'post_norm, no_residual: no finished run'
  assert findings(fake_runs.BLOCK, directory)['notes'] == ['no finished run of seeds 2, 3, 4', absent]
  (directory / 'relu/seed_1/result.json').unlink()
  apart = ['baseline: no finished run of seeds 2, 3, 4', absent, 'relu: no finished run of seeds 1, 2, 3, 4']
  assert findings(fake_runs.BLOCK, directory)['notes'] == apart


@pytest.mark.parametrize(
  ('changes', 'seeds', 'covers'),
  [
    ({}, (0, 1), 'the initial values and the order of the data, which change together from seed to seed'),
    ({'data.seed': 7}, (0, 1), 'the initial values alone'),
    ({'run.init_seed': 7}, (0, 1), 'the order of the data alone'),
    ({}, (0,), None),
  ],
)
def test_an_interval_covers_what_differs_between_seeds(tmp_path, changes, seeds, covers):
  experiment = Experiment('?', {'baseline': {}, 'relu': {'model.feed_forward': 'relu'}}, name='x', seeds=seeds)
  levels = {'baseline': 2.9, 'relu': 3.0}
  summary = findings(experiment, fake_runs.write_experiment(tmp_path, experiment, levels, changes=changes, points=3))
  assert summary['interval']['covers'] == covers
  said = f'intervals cover {covers}; not' if covers else 'one seed gives no interval, and no verdict'
  assert said in ' '.join(printed(summary).split())


def test_runs_of_other_variants_are_named_not_mixed_in(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', points=3)
  experiment = Experiment('?', {'baseline': {}, 'relu': {'model.feed_forward': 'relu'}}, name='block')
  summary = findings(experiment, directory)
  assert list(summary['variants']) == ['baseline', 'relu']
  assert any('no_residual, post_norm' in note for note in summary['notes'])
  report.write(experiment, directory, COMMAND)
  with (directory / 'results.csv').open() as file:
    assert len(list(csv.DictReader(file))) == 20  # every run there is
  with pytest.raises(ConfigError, match='none of mine'):
    findings(Experiment('?', {'mine': {}}, name='block'), directory)


def test_a_synthetic_task_is_compared_in_nats(tmp_path):
  directory = fake_runs.write_experiment(
    tmp_path / 'copy', COPY, {'baseline': 0.3, 'post': 0.31, 'deep': 4.1}, changes={'data.task': 'copy'}, yardsticks={}
  )
  report.write(COPY, directory, 'python train.py --experiment=copy')
  summary = json.loads((directory / 'summary.json').read_text())
  assert summary['measure'] == {'column': 'val_loss', 'unit': 'nats a token', 'margin': 0.014, 'split': 'validation'}
  assert summary['yardsticks'] == {'unigram': 4.159}
  assert summary['variants']['post']['mean'] == pytest.approx(0.31, abs=0.05)
  assert summary['variants']['post']['test_mean'] is None
  deep = summary['variants']['deep']
  assert deep['sentence'].endswith('fan_in with the scale of DeepNorm (baseline fan_in with depth scale)')
  page = (directory / 'report.html').read_text()
  assert 'nats a token' in page
  assert 'bits per byte' not in page


def test_a_tuned_rate_is_told_from_a_shared_one(tmp_path):
  experiment = Experiment(
    '?', {'baseline': {}, 'post': {'model.norm_placement': 'post', 'optimizer.learning_rate': 2e-3}}, name='x'
  )
  levels = {'baseline': 2.9, 'post': 2.8}
  fake_runs.write_experiment(tmp_path / 'tuned', experiment, levels, points=3, tuned=True)
  tuned = findings(experiment, tmp_path / 'tuned')
  assert 'at learning rate 2e-3 (tuned; baseline 4e-3)' in tuned['variants']['post']['sentence']
  assert 'learning rate (4e-3, 2e-3)' in tuned['not_held_equal']
  assert 'the budget for tuning the learning rate' in tuned['held_equal']
  fake_runs.write_experiment(tmp_path / 'set', experiment, levels, points=3)
  by_hand = findings(experiment, tmp_path / 'set')
  assert 'at learning rate 2e-3 (baseline 4e-3)' in by_hand['variants']['post']['sentence']


def test_the_names_of_a_grid_are_broken_where_they_are_joined(tmp_path):
  experiment = Experiment(
    '?',
    {'norm_placement=pre+learning_rate=0.001': {}, 'norm_placement=post+learning_rate=0.001': {'model.norm': 'layer'}},
    name='custom',
    seeds=(0, 1),
  )
  levels = dict.fromkeys(experiment.variants, 2.9)
  said = printed(findings(experiment, fake_runs.write_experiment(tmp_path, experiment, levels, points=3)))
  assert ' norm_placement=post ' in said
  assert ' +learning_rate=0.001 ' in said
  assert 'minus baseline' in said
