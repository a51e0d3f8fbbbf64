"""Draws docs/block.svg: the block with its gradient taps, and the sublayer of every norm placement.

The boxes of each placement are not written down here. They come from calling the functions that the model itself
calls, with symbols in place of arrays, so that the drawing cannot differ from the code.

Command: python -m docs.draw_block
"""

from pathlib import Path
from typing import NamedTuple

from model import ModelConfig
from model.norm_placement import NORM_PLACEMENTS

PICTURE = Path(__file__).with_name('block.svg')
WIDTH, HEIGHT = 900, 452
BLACK, GREY, TAP = '#1A1A1A', '#6B6B6B', '#D55E00'
FILL = {'norm': '#FBE3B5', 'branch': '#D3E6F3'}
NOTES = {'deepnorm': 'a = (2L)^¼', 'sandwich': 'M: a second norm'}
STYLE = (
  'text{font:13px Helvetica,Arial,sans-serif;fill:#1A1A1A}.small{font-size:11px;fill:#6B6B6B}.tap{fill:#D55E00}'
  '.middle{text-anchor:middle}.bold{font-weight:bold}'
)


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


def trace(placement: str) -> Sublayer:
  """The sublayer of a norm placement, from the functions in model/norm_placement.py."""
  wiring = NORM_PLACEMENTS[placement]

  def box(name: str):
    return lambda boxes: (*boxes, name)

  def symbol(name: str):
    return lambda text: f'{name}({text})'

  N, F, M = map(box, 'NFM')
  branch, output = wiring.branch((), F, N, M), wiring.output((), N)
  N, F, M = map(symbol, 'NFM')
  total = f'a x + {wiring.branch("x", F, N, M)}'
  return Sublayer(branch, output, f'y = {wiring.output(total, N)}')


def text(x: float, y: float, content: str, kind: str = '') -> str:
  """A line of text; `kind` is a class of STYLE."""
  return f'<text x="{x:g}" y="{y:g}" class="{kind}">{content}</text>'


def line(points: str, colour: str = BLACK, arrow: bool = False, dashed: bool = False) -> str:
  """A polyline."""
  end = ' marker-end="url(#forward)"' if arrow and not dashed else ' marker-end="url(#backward)"' if arrow else ''
  dashes = ' stroke-dasharray="4 3"' if dashed else ''
  return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"{dashes}{end}/>'


def box(x: float, y: float, width: float, name: str, kind: str) -> str:
  """A box around (x, y), its left edge at x."""
  return (
    f'<rect x="{x:g}" y="{y - 13:g}" width="{width:g}" height="26" rx="4" fill="{FILL[kind]}" stroke="{BLACK}"/>'
    + text(x + width / 2, y + 4.5, name, 'middle')
  )


def plus(x: float, y: float) -> str:
  """The sum of the two paths."""
  return f'<circle cx="{x:g}" cy="{y:g}" r="9" fill="white" stroke="{BLACK}"/>' + text(x, y + 4.5, '+', 'middle')


def tap(x: float, y: float) -> str:
  """A fork of the stream, where the gradient is measured."""
  return f'<circle cx="{x:g}" cy="{y:g}" r="5.5" fill="{TAP}" stroke="white" stroke-width="1.5"/>'


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
    parts.append(box(left, y - rise, box_width, names[name], 'branch' if name == 'F' else 'norm'))
    left += box_width
  parts += [plus(end, y), tap(x, y)]
  parts += [box(end + 18 + 36 * k, y, 26, names[name], 'norm') for k, name in enumerate(boxes.output)]
  return ''.join(parts)


def block() -> str:
  """The block under Pre-Norm, with the two paths of the gradient."""
  y, rise, pre = 142, 62, trace('pre')
  parts = [
    text(20, 24, 'One block, norm_placement=pre', 'bold'),
    text(20, 42, 'forward, left to right: u = a x + attention(N(x)), y = a u + feed_forward(N(u))', 'small'),
    line(f'20,{y} 60,{y}'), line(f'760,{y} 784,{y}'), line(f'808,{y} 884,{y}', arrow=True),
    sublayer(60, y, 350, pre, 'attention', rise), sublayer(410, y, 350, pre, 'feed-forward', rise),
    text(796, y + 4, '...', 'middle'), tap(830, y),
    text(30, y - 8, 'x', 'middle'), text(396, y - 8, 'u', 'middle'), text(750, y - 8, 'y', 'middle'),
    text(225, y - 8, 'skip path, times a', 'small middle'), text(225, y - rise - 20, 'residual branch', 'small middle'),
    text(796, y + 20, 'more blocks', 'small middle'), text(862, y - 10, 'to the head', 'small middle'),
  ]  # fmt: skip
  for start in (60, 410):
    parts += [
      line(f'{start + 310},{y + 14} {start + 12},{y + 14}', TAP, arrow=True, dashed=True),
      line(f'{start + 308},{y - rise + 18} {start + 12},{y - rise + 18}', TAP, arrow=True, dashed=True),
      text(start + 165, y + 30, 'backward: a g', 'small tap middle'),
      text(start + 165, y - rise + 33, 'backward: Jᵀg', 'small tap middle'),
    ]
  return ''.join(
    [
      *parts,
      tap(28, 198),
      text(40, 202, 'fork with a gradient tap: the backward pass measures |skip|², |branch|² and their inner product'
      ' at every sublayer, and |g|² at the output of the stack', 'small tap'),
    ]
  )  # fmt: skip


def panel(x: float, y: float, placement: str) -> str:
  """One sublayer of a norm placement."""
  boxes = trace(placement)
  final = 'a final norm before the head' if ModelConfig(norm_placement=placement).has_final_norm else 'no final norm'
  note = '; '.join([*([NOTES[placement]] if placement in NOTES else []), final])
  return (
    text(x, y, placement, 'bold')
    + text(x + 262, y, boxes.equation).replace('class=', 'text-anchor="end" class=')
    + line(f'{x},{y + 66} {x + 20},{y + 66}')
    + line(f'{x + 220},{y + 66} {x + 260},{y + 66}', arrow=True)
    + sublayer(x + 20, y + 66, 200, boxes, 'F', 40)
    + text(x, y + 90, note, 'small')
  )


def picture() -> str:
  """The whole drawing, as SVG."""
  arrows = ''.join(
    f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
    for name, colour in (('forward', BLACK), ('backward', TAP))
  )
  panels = [panel(20 + 300 * (k % 3), 240 + 114 * (k // 3), name) for k, name in enumerate(NORM_PLACEMENTS)]
  lines = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
    f'<style>{STYLE}</style><defs>{arrows}</defs><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    block(),
    line(f'20,216 {WIDTH - 20},216', '#E4E4E4'),
    *panels,
    '</svg>',
  ]
  return '\n'.join(lines) + '\n'


if __name__ == '__main__':
  PICTURE.write_text(picture(), 'utf8')
