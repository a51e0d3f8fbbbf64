"""The pages in a real browser: every image loads, nothing overflows, and there are no errors."""

import fake_runs
import pytest
from browser import browser

from experiments.rank_collapse import MODELS, NORMS
from lab.core import registry
from lab.report import report
from lab.reproduce import record, reproduction_report

pytestmark = pytest.mark.browser

IMAGES = '[...document.images].map(image => image.complete && image.naturalWidth > 0)'
# Elements that extend past the window, except those in a scrollable box.
OVERFLOWING = """
[...document.querySelectorAll('body *')]
  .filter(e => e.getBoundingClientRect().right > window.innerWidth + 0.5 && !e.closest('.scroll, pre, code'))
  .map(e => e.outerHTML.slice(0, 100))
"""


def experiment_page(directory):
  fake_runs.write_experiment(directory / 'block', statuses={('post_norm', 1): 'diverged'})
  return report.write(fake_runs.BLOCK, directory / 'block', 'python train.py ' + '--a-long-flag=1 ' * 20)[1][-1]


def reproduction_page(directory):
  shown = []
  for name, measured in {'rank_collapse': rank_collapse(), 'worked_example': worked_example()}.items():
    reproduction = registry.find_reproduction(name)
    made = record.make_record(reproduction, 'small', measured, 1.0)
    shown.append(reproduction_report.draw(reproduction, made, directory / name))
  return reproduction_report.write_report(
    shown, ['a_reproduction FAILED: ' + 'NoSpaces' * 20], directory / 'report.html'
  )


def worked_example():
  reproduction = registry.find_reproduction('worked_example')
  return {expected.quantity: expected.low for expected in reproduction.expected[:-1]} | {
    'gradient_parts': [1, 2, -1], 'without_relu': 0.0,
  }  # fmt: skip


def rank_collapse():
  curves = {f'{model}, {norm}': [[1.0, 0.5, 0.1], [1.0, 0.4, 0.2]] for model in MODELS for norm in NORMS}
  return {'r': curves, 'alone_3': [1e-6, 2e-6], 'speeding_up': [2.0, 3.0], 'feed_forward_slows': [0.1, 0.2],
          'skip_keeps': [[0.1] * 4, [0.2] * 4]}  # fmt: skip


@pytest.mark.parametrize('make', [experiment_page, reproduction_page])
def test_a_page_fits_any_width_without_errors(make, tmp_path):
  page = make(tmp_path)
  with browser(tmp_path / 'profile') as tab:
    for width in (400, 1400):
      tab.open(page, width)
      assert tab.evaluate('window.innerWidth') == width
      images = tab.evaluate(IMAGES)
      assert len(images) >= 2
      assert all(images)
      assert tab.evaluate('document.documentElement.scrollWidth') <= width
      assert tab.evaluate(OVERFLOWING) == []
    assert tab.errors == []


def test_the_checks_detect_faults(tmp_path):
  """A page with a missing image, an overflow, two errors and a failed request fails every check above."""
  page = tmp_path / 'page.html'
  page.write_text(
    '<!doctype html><img src="data:image/png;base64,AAAA"><div style="width: 500px">wide</div>'
    '<script>console.error("told")</script><script>missing()</script><link rel="stylesheet" href="gone.css">'
  )
  with browser(tmp_path / 'profile') as tab:
    tab.open(page, 400)
    assert tab.evaluate(IMAGES) == [False]
    assert tab.evaluate('document.documentElement.scrollWidth') > 400
    assert len(tab.evaluate(OVERFLOWING)) == 1
    assert len(tab.errors) == 3
