"""Draws docs/block.svg: the block with its gradient taps, and the sublayer of every norm placement.

The boxes of each placement are not written down here. They come from calling the functions that the model itself
calls, with symbols in place of arrays, so that the drawing cannot differ from the code.

Command: python -m docs.draw_block
"""

import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from docs.svg import ACCENT, BLACK, box, document, line, text
from model import ModelConfig
from model.connections import CONNECTIONS, Site
from model.connections.norm_placement import OneStream

PICTURE = Path(__file__).with_name('block.svg')
PLACEMENTS = tuple(name for name, part in CONNECTIONS.items() if part.__module__ == OneStream.__module__)
WIDTH, HEIGHT = 900, 224 + 114 * math.ceil(len(PLACEMENTS) / 3)
NORM, BRANCH = '#FBE3B5', '#D3E6F3'  # fills
NOTES = {'deepnorm': 'a = (2L)^¼', 'sandwich': 'M: a second norm'}


class Sublayer(NamedTuple):
  """The boxes of a sublayer in the order in which the forward pass goes through them, and its equation.

  Attributes:
    branch: on the residual branch: N and M are norms, F is attention or the feed-forward.
    output: on the stream, after the sum.
    equation: what the sublayer computes.
  """

  branch: tuple[str, ...]
  output: tuple[str, ...]
  equation: str


class Symbol(NamedTuple):
  """What stands for an array: its formula, and the boxes it has gone through since the fork or the sum."""

  formula: str
  boxes: tuple[str, ...] = ()

  def through(self, box: str) -> 'Symbol':
    """The output of a norm, or of the branch."""
    return Symbol(f'{box}({self.formula})', (*self.boxes, box))

  def __rmul__(self, scale: float) -> 'Symbol':
    return Symbol(f'a {self.formula}', self.boxes)

  def __add__(self, other: tuple) -> 'Symbol':
    return Symbol(f'{self.formula} + {other[0]}')


def trace(placement: str) -> Sublayer:
  """The sublayer of a norm placement, from its methods in model/connections/norm_placement.py."""
  connection: Any = CONNECTIONS[placement](ModelConfig(connection=placement), 'attention', Site(jnp.array(1), 2))
  for name, symbol in (('norm', 'N'), ('output_norm', 'M')):
    if hasattr(connection, name):
      setattr(connection, name, functools.partial(Symbol.through, box=symbol))
  term = connection.term(connection.read(Symbol('x'), None).through('F'), None)
  output = connection.write(Symbol('x'), term, None)
  return Sublayer(term.boxes, output.boxes, f'y = {output.formula}')


def plus(x: float, y: float) -> str:
  """The sum of the two paths."""
  return f'<circle cx="{x:g}" cy="{y:g}" r="9" fill="white" stroke="{BLACK}"/>' + text(x, y + 4.5, '+', 'middle')


def tap(x: float, y: float) -> str:
  """A fork of the stream, where the gradient is measured."""
  return f'<circle cx="{x:g}" cy="{y:g}" r="5.5" fill="{ACCENT}" stroke="white" stroke-width="1.5"/>'


def sublayer(x: float, y: float, width: float, boxes: Sublayer, branch_name: str, rise: float) -> str:
  """A sublayer from its fork at x to x + width, the residual branch above the stream."""
  names = {'F': branch_name, 'N': 'N', 'M': 'M'}
  widths = [26 if name != 'F' else 26 + 7 * (len(branch_name) - 1) for name in boxes.branch]
  end = x + width - 30 - 36 * len(boxes.output)
  gap = (end - x - sum(widths)) / (len(widths) + 1)
  parts = [line(f'{x},{y} {x + width},{y}'), line(f'{x},{y} {x},{y - rise} {end},{y - rise} {end},{y - 9}', arrow=True)]
  left = x
  for name, box_width in zip(boxes.branch, widths, strict=True):
    left += gap
    parts.append(box(left, y - rise, box_width, 26, names[name], BRANCH if name == 'F' else NORM))
    left += box_width
  parts += [plus(end, y), tap(x, y)]
  parts += [box(end + 18 + 36 * k, y, 26, 26, names[name], NORM) for k, name in enumerate(boxes.output)]
  return ''.join(parts)


def block() -> str:
  """The block under Pre-Norm, with the two paths of the gradient."""
  y, rise, pre = 142, 62, trace('pre')
  parts = [
    text(20, 24, 'One block, connection=pre', 'bold'),
    text(20, 42, 'forward, left to right: u = a x + attention(N(x)), y = a u + feed_forward(N(u))', 'small'),
    text(880, 24, 'N: norm; F: attention or feed-forward; a: residual scale', 'small end'),
    text(880, 42, "g: gradient of the loss at the sublayer's output; J: Jacobian of its branch", 'small accent end'),
    line(f'20,{y} 60,{y}'), line(f'760,{y} 784,{y}'), line(f'808,{y} 884,{y}', arrow=True),
    sublayer(60, y, 350, pre, 'attention', rise), sublayer(410, y, 350, pre, 'feed-forward', rise),
    text(796, y + 4, '...', 'middle'), tap(830, y),
    text(30, y - 8, 'x', 'middle'), text(396, y - 8, 'u', 'middle'), text(750, y - 8, 'y', 'middle'),
    text(225, y - 8, 'skip path, times a', 'small middle'), text(225, y - rise - 20, 'residual branch', 'small middle'),
    text(796, y + 20, 'more blocks', 'small middle'), text(862, y - 10, 'to the head', 'small middle'),
  ]  # fmt: skip
  for start in (60, 410):
    parts += [
      line(f'{start + 310},{y + 14} {start + 12},{y + 14}', ACCENT, arrow=True, dashed=True),
      line(f'{start + 308},{y - rise + 18} {start + 12},{y - rise + 18}', ACCENT, arrow=True, dashed=True),
      text(start + 165, y + 30, 'backward: a g', 'small accent middle'),
      text(start + 165, y - rise + 33, 'backward: Jᵀg', 'small accent middle'),
    ]
  return ''.join(
    [
      *parts,
      tap(28, 198),
      text(40, 202, 'fork with a gradient tap: the backward pass measures |skip|², |branch|² and their inner product'
      ' at every sublayer, and |g|² at the output of the stack', 'small accent'),
    ]
  )  # fmt: skip


def panel(x: float, y: float, placement: str) -> str:
  """One sublayer of a norm placement."""
  boxes = trace(placement)
  final = 'a final norm before the head' if CONNECTIONS[placement].final_norm else 'no final norm'
  note = '; '.join([*([NOTES[placement]] if placement in NOTES else []), final])
  return (
    text(x, y, placement, 'bold')
    + text(x + 262, y, boxes.equation, 'end')
    + line(f'{x},{y + 66} {x + 20},{y + 66}')
    + line(f'{x + 220},{y + 66} {x + 260},{y + 66}', arrow=True)
    + sublayer(x + 20, y + 66, 200, boxes, 'F', 40)
    + text(x, y + 90, note, 'small')
  )


def picture() -> str:
  """The whole drawing, as SVG."""
  panels = [panel(20 + 300 * (k % 3), 240 + 114 * (k // 3), name) for k, name in enumerate(PLACEMENTS)]
  return document(WIDTH, HEIGHT, [block(), line(f'20,216 {WIDTH - 20},216', '#E4E4E4'), *panels])


if __name__ == '__main__':
  PICTURE.write_text(picture(), 'utf8')
