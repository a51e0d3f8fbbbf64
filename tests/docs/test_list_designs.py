"""docs/designs.md lists the designs that exist."""

import re

from docs.list_designs import PAGE, page
from model.connections import CONNECTIONS


def test_the_committed_page_lists_the_designs():
  assert PAGE.read_text('utf8') == page(), 'write it again: python -m docs.list_designs'


def test_every_design_has_one_row():
  assert re.findall(r'^\| `(\w+)` \|', page(), re.MULTILINE) == list(CONNECTIONS)
