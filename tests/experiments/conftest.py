"""What the tests of experiments share."""

import pytest

from experiments import figure_style


@pytest.fixture
def one_format(monkeypatch):
  """Figures are saved as SVG alone, where a test is not about them."""
  monkeypatch.setattr(figure_style, 'FORMATS', {'svg': figure_style.FORMATS['svg']})
