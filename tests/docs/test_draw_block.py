"""The README's picture of the block shows what the code computes."""

import re

import pytest

from docs.draw_block import PICTURE, PLACEMENTS, picture, trace


def test_the_committed_picture_is_what_the_code_draws():
  assert PICTURE.read_text('utf8') == picture(), 'draw it again: python -m docs.draw_block'


@pytest.mark.parametrize(
  ('placement', 'branch', 'output', 'equation'),
  [
    ('pre', 'NF', '', 'y = a x + F(N(x))'),
    ('post', 'F', 'N', 'y = N(a x + F(x))'),
    ('sandwich', 'NFM', '', 'y = a x + M(F(N(x)))'),
    ('res_post', 'FN', '', 'y = a x + N(F(x))'),
    ('none', 'F', '', 'y = a x + F(x)'),
  ],
)
def test_a_sublayer_as_published(placement, branch, output, equation):
  assert trace(placement) == (tuple(branch), tuple(output), equation)


def test_every_placement_is_drawn():
  assert re.findall(r'class="bold">(\w+)<', picture()) == list(PLACEMENTS)
