"""The contents of the figures, read from their artists and compared with the logs."""

import json

import fake_runs
import numpy as np
import pytest
from matplotlib.colors import to_hex

from lab.analysis import load_runs, summary
from lab.core.experiment import Experiment
from lab.figures import experiment_figures, figure_style

DIVERGED = {('post_norm', 1): 'diverged'}


def prepare(directory, **options):
  experiment = options.get('experiment', fake_runs.BLOCK)
  found = load_runs.load(experiment, fake_runs.write_experiment(directory / experiment.name, **options))
  return found, summary.summarise(found)


@pytest.fixture(scope='module')
def drawn(tmp_path_factory):
  """The directory, runs and figures of an experiment with a diverged run and a variant that never learned."""
  directory = tmp_path_factory.mktemp('runs')
  found, findings = prepare(directory, statuses=DIVERGED)
  return (
    directory / 'block',
    found,
    {picture.name: picture for picture in experiment_figures.draw_all(found, findings) if picture.figure},
  )


def artists(axes):
  return {artist.get_gid(): artist for artist in axes.get_children() if artist.get_gid()}


def logged(directory, variant, seed, name):
  lines = [json.loads(line) for line in (directory / variant / f'seed_{seed}/metrics.jsonl').read_text().splitlines()]
  return [(line['step'], line[name]) for line in lines if name in line]


def test_loss_curves_show_every_seed_and_the_mean(drawn):
  directory, _, pictures = drawn
  lines = artists(pictures['loss_curves'].figure.axes[0])
  seeds = []
  for seed in range(5):
    steps, values = zip(*logged(directory, 'relu', seed, 'validation/bits_per_byte'), strict=True)
    np.testing.assert_allclose(lines[f'seed:relu:{seed}'].get_xdata(), np.array(steps) * 16 * 64)
    np.testing.assert_allclose(lines[f'seed:relu:{seed}'].get_ydata(), values)
    seeds.append(values)
  np.testing.assert_allclose(lines['mean:relu'].get_ydata(), np.mean(seeds, axis=0))
  assert lines['ngram:unigram'].get_ydata()[0] == 4.43


def test_a_diverged_run_is_marked_and_excluded_from_means(drawn):
  directory, _, pictures = drawn
  lines = artists(pictures['loss_curves'].figure.axes[0])
  step, value = logged(directory, 'post_norm', 1, 'validation/bits_per_byte')[-1]
  assert lines['diverged:post_norm:1'].get_xydata().tolist() == [[step * 16 * 64, value]]
  ended = [lines[f'seed:post_norm:{seed}'].get_ydata() for seed in (0, 2, 3, 4)]
  np.testing.assert_allclose(lines['mean:post_norm'].get_ydata(), np.mean(ended, axis=0))
  texts = [text.get_text() for text in pictures['loss_curves'].figure.axes[0].texts]
  assert 'post_norm (4/5 learned)' in texts
  finals = artists(pictures['final_loss_by_variant'].figure.axes[0])
  assert 'diverged:post_norm:1' in finals
  assert 'seed:post_norm:1' not in finals
  assert all('diverged' in pictures[name].caption for name in pictures)


def test_a_diverged_run_does_not_flatten_the_others(tmp_path):
  found, findings = prepare(tmp_path, statuses=DIVERGED, finals={('post_norm', 1): 1e6})
  axes = experiment_figures.loss_curves(found, findings).figure.axes[0]
  assert axes.get_ylim()[1] < 10
  assert artists(axes)['diverged:post_norm:1'].get_ydata()[0] <= axes.get_ylim()[1]


def test_stream_gradient_at_both_ends_of_training(drawn):
  directory, _, pictures = drawn
  first, last = (artists(axes) for axes in pictures['stream_gradient_by_layer'].figure.axes)
  feed_forward = logged(directory, 'relu', 2, 'stream_gradient/block_03/feed_forward/total')
  attention = logged(directory, 'relu', 2, 'stream_gradient/block_03/attention/total')
  output = logged(directory, 'relu', 2, 'stream_gradient/output/total')
  for lines, index in ((first, 0), (last, -1)):
    points = dict(lines['seed:relu:2'].get_xydata())
    assert points[3.0] == attention[index][1]
    assert points[3.5] == feed_forward[index][1]
    assert points[12.0] == output[index][1]
    assert len(points) == 25
    seeds = [lines[f'seed:relu:{seed}'].get_ydata() for seed in range(5)]
    np.testing.assert_allclose(lines['mean:relu'].get_ydata(), np.exp(np.mean(np.log(seeds), axis=0)))
  assert pictures['stream_gradient_by_layer'].figure.axes[0].get_yscale() == 'log'
  assert last['seed:post_norm:1'].get_marker() == 'x'
  assert first['seed:post_norm:1'].get_marker() == ''
  ended = [last[f'seed:post_norm:{seed}'].get_ydata() for seed in (0, 2, 3, 4)]
  np.testing.assert_allclose(last['mean:post_norm'].get_ydata(), np.exp(np.mean(np.log(ended), axis=0)))


def test_final_losses_and_paired_differences(drawn):
  directory, _, pictures = drawn
  left, right = (artists(axes) for axes in pictures['final_loss_by_variant'].figure.axes)
  final = {
    (variant, seed): json.loads((directory / variant / f'seed_{seed}/result.json').read_text())['val_bits_per_byte']
    for variant in fake_runs.LEVELS
    for seed in range(5)
  }
  assert left['seed:relu:3'].get_xdata()[0] == final['relu', 3]
  assert to_hex(left['seed:no_residual:0'].get_markerfacecolor()) == '#ffffff'  # did not learn
  assert to_hex(left['seed:relu:0'].get_markerfacecolor()) != '#ffffff'
  assert left['ngram:trigram'].get_xdata()[0] == 2.63
  differences = [final['relu', seed] - final['baseline', seed] for seed in range(5)]
  half = 2.776 * np.std(differences, ddof=1) / np.sqrt(5)
  expected = np.mean(differences) + half * np.array([-1, 1])
  np.testing.assert_allclose(right['difference:relu'].get_xdata(), expected, atol=1e-4)


def test_a_caption_states_the_scored_part_of_the_split(tmp_path):
  for scored, part in ((100, 'over the whole split'), (50, 'over a fixed subset of the split')):
    found, findings = prepare(tmp_path / str(scored), levels={'baseline': 2.9}, statuses={('baseline', 0): 'diverged'})
    for run in found.runs[1:]:
      run.result.update(
        val_tokens=scored, val_tokens_of=100, test_tokens=scored, test_tokens_of=100, final_evaluation_tokens=50
      )
    assert f'after the last step, {part};' in experiment_figures.final_loss_by_variant(found, findings).caption


def test_a_failed_variant_does_not_flatten_the_differences(drawn):
  _, found, pictures = drawn
  right = pictures['final_loss_by_variant'].figure.axes[1]
  low, high = right.get_xlim()
  assert high < 0.3
  assert low < artists(right)['difference:relu'].get_xdata()[1] < high
  assert artists(right)['off:no_residual'].get_text().startswith('+1.5')
  band = artists(right)['margin']
  assert (band.get_x(), band.get_width()) == pytest.approx((-found.metric.margin, 2 * found.metric.margin))


def test_a_variant_looks_the_same_in_every_figure(drawn):
  _, _, pictures = drawn
  colours = {}
  for picture in pictures.values():
    for axes in picture.figure.axes:
      for gid, artist in artists(axes).items():
        kind, _, rest = gid.partition(':')
        if kind in ('seed', 'mean', 'diverged', 'difference', 'pair', 'off'):
          colours.setdefault(rest.partition(':')[0], set()).add(to_hex(artist.get_color()))
  assert {variant: len(found) for variant, found in colours.items()} == dict.fromkeys(fake_runs.LEVELS, 1)
  assert len(set.union(*colours.values())) == 4


def test_a_dozen_variants_have_distinct_styles_and_the_baseline_is_black():
  experiment = Experiment('?', {f'v{k}': {} for k in range(12)})
  styles = figure_style.variant_styles(experiment)
  assert styles['v0'].colour == figure_style.variant_styles(fake_runs.BLOCK)['baseline'].colour == '#1A1A1A'
  assert len({(style.colour, style.dashes) for style in styles.values()}) == 12


@pytest.mark.parametrize(
  'name',
  ['num_layers=1+d_model=16+num_heads=2+sequence_length=16+warmup_steps=2+steps=20+evaluations=2+data=2', 'x' * 80],
)
def test_a_long_name_fits_in_every_figure(tmp_path, name):
  found, findings = prepare(
    tmp_path, experiment=Experiment(name='custom', question='?', variants={name: {}}), levels={name: 3.0}, points=4
  )
  pictures = {picture.name: picture.figure for picture in experiment_figures.draw_all(found, findings)}
  gradients, losses = pictures['stream_gradient_by_layer'], pictures['final_loss_by_variant']
  for figure in (gradients, losses):
    figure.draw_without_rendering()
  for text in gradients.legends[0].get_texts():
    box = text.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= gradients.bbox.width
    assert ''.join(text.get_text().split()) == name
  if '+' in name:
    label = losses.axes[0].get_yticklabels()[0].get_window_extent()
    assert label.y0 >= 0
    assert label.y1 <= losses.bbox.height


def test_a_figure_that_cannot_be_drawn_says_why(tmp_path):
  found, findings = prepare(tmp_path, levels={'baseline': 2.9, 'relu': 3.0}, inspect=False)
  gradient = experiment_figures.stream_gradient_by_layer(found, findings)
  assert gradient.figure is None
  assert 'inspect.level=off' in gradient.caption
  for points in (1, 0):  # a single point is not a curve
    for path in (tmp_path / 'block').glob('*/*/metrics.jsonl'):
      path.write_text(''.join(path.read_text().splitlines(keepends=True)[-1:] * points))
    found = load_runs.load(fake_runs.BLOCK, tmp_path / 'block')
    curves, finals = (
      experiment_figures.loss_curves(found, findings),
      experiment_figures.final_loss_by_variant(found, findings),
    )
    assert curves.figure is None
    assert 'no run logged validation/bits_per_byte more than once' in curves.caption
    assert finals.figure is not None


def test_zero_gradients_are_counted_and_not_drawn(tmp_path):
  found, findings = prepare(tmp_path, levels={'baseline': 2.9})
  for run in found.runs:
    run.metrics['stream_gradient/block_00/attention/total'] = 0.0
  picture = experiment_figures.stream_gradient_by_layer(found, findings)
  hidden = '10 gradients that are 0, or whose square is below the smallest float32.'
  assert picture.caption.endswith(f' Not shown on the logarithmic axis: {hidden}')
  mean = artists(picture.figure.axes[0])['mean:baseline'].get_ydata()
  assert np.isnan(mean[0])
  assert np.isfinite(mean[1:]).all()


def test_the_same_numbers_give_the_same_bytes(tmp_path):
  files = []
  for name in ('a', 'b'):
    found, findings = prepare(tmp_path / name, levels={'baseline': 2.9, 'relu': 3.0})
    picture = experiment_figures.final_loss_by_variant(found, findings)
    files.append([path.read_bytes() for path in figure_style.save(picture.figure, tmp_path / name, 'final')])
  assert files[0] == files[1]
  assert files[0][0].startswith(b'\x89PNG')
  assert files[0][1].startswith(b'%PDF')
  assert b'<svg' in files[0][2]


def test_spread_apart_moves_labels_as_little_as_possible():
  assert figure_style.spread_apart([0.5, 0.1, 0.9], 0.2) == [0.5, 0.1, 0.9]
  assert figure_style.spread_apart([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])
  assert figure_style.spread_apart([0.0, 0.05, 0.9], 0.2, lowest=0.0) == pytest.approx([0.0, 0.2, 0.9])
  rng = np.random.default_rng(0)
  for _ in range(50):
    wanted = rng.random(8).tolist()
    moved = figure_style.spread_apart(wanted, 0.07)
    assert np.diff(sorted(moved)).min() > 0.07 - 1e-9
    assert np.argsort(moved).tolist() == np.argsort(wanted).tolist()
